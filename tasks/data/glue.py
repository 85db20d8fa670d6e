"""GLUE: sentence classification tasks (Wang et al., 2019), read from the tab-separated files of the benchmark."""

import csv
from typing import Literal

from tasks.data.resolve import Door

Split = Literal["train", "dev"]


class SST2(Door):
    """Phrases and sentences of film reviews, labelled 0 (negative) or 1 (positive)."""

    def examples(self, split: Split) -> tuple[list[str], list[int]]:
        """Texts and labels in the order of the file; raises `MissingData`."""
        file = next(file for file in self.files if file.endswith(f"/{split}.tsv"))
        with self.path(file).open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
        return [row["sentence"].strip() for row in rows], [int(row["label"]) for row in rows]
