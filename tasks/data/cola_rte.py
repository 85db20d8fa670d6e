"""CoLA and RTE, two tasks of GLUE (Wang et al., 2019), read from the tab-separated files of the benchmark."""

import csv
from typing import Literal

from tasks.data.resolve import Door

Split = Literal["train", "dev"]


class _Tsv(Door):
    """Files `<split>.tsv`."""

    def _rows(self, split: Split) -> list[list[str]]:
        file = next(file for file in self.files if file.endswith(f"/{split}.tsv"))
        with self.path(file).open(encoding="utf-8", newline="") as stream:
            return list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


class CoLA(_Tsv):
    """Sentences of linguists, labelled 1 (acceptable) or 0 (Warstadt et al., 2019)."""

    def examples(self, split: Split) -> tuple[list[tuple[str]], list[int]]:
        """Sentences and labels in the order of the file; raises `MissingData`."""
        rows = self._rows(split)
        return [(row[3],) for row in rows], [int(row[1]) for row in rows]


class RTE(_Tsv):
    """Pairs of a text and a hypothesis, labelled 0 (the text entails it) or 1 (Dagan et al., 2006, and later)."""

    def examples(self, split: Split) -> tuple[list[tuple[str, str]], list[int]]:
        """Pairs and labels in the order of the file; raises `MissingData`."""
        rows = self._rows(split)[1:]
        return [(row[1], row[2]) for row in rows], [int(row[3] != "entailment") for row in rows]
