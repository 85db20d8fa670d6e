"""Plain text, cut into a part to train on and one to validate on."""

from collections.abc import Mapping
from typing import Literal

from tasks.data.resolve import Door


class Text(Door):
    """Text files, read one after the other.

    Args:
        files: path -> SHA-256, in the order of reading.
        held_out: share of the characters, from the end, that is the validation part, in (0, 1).
        name, size_mb, licence, urls, source: as `Door`.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        *,
        held_out: float,
        name: str,
        size_mb: float,
        licence: str,
        urls: Mapping[str, str] | None = None,
        source: str = "",
    ) -> None:
        super().__init__(files, name=name, size_mb=size_mb, licence=licence, urls=urls, source=source)
        if not 0 < held_out < 1:
            raise ValueError(f"held_out must be in (0, 1), not {held_out}")
        self.held_out = held_out

    def text(self, split: Literal["train", "validation"]) -> str:
        """One of the parts; raises `MissingData`."""
        whole = "".join(self.path(file).read_text(encoding="utf-8") for file in self.files)
        first = round(len(whole) * (1 - self.held_out))
        return whole[:first] if split == "train" else whole[first:]
