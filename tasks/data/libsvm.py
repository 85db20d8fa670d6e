"""Door to the LIBSVM binary classification sets."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from tasks.data.resolve import Door, MissingData
from tasks.data.tabular import Table, scale_columns, signs


class LibSVM(Door):
    """One file in LIBSVM's text format, plain or compressed (.bz2, .gz), read as it is.

    Args:
        files: path -> SHA-256 of the file that is looked for first.
        raw: path -> SHA-256 of the same content uncompressed, under the public name; taken where the first is
            missing, and what `urls` downloads.
        scale: map every feature onto [-1, 1] (the sets that LIBSVM calls `_scale`).
        positive: label of the positive class; None: the larger of the two.
        features: number of features; None: as many as the file shows.
        name, size_mb, licence, urls, source: as `Door`.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        *,
        name: str,
        size_mb: float,
        licence: str,
        raw: Mapping[str, str] | None = None,
        scale: bool = False,
        positive: float | None = None,
        features: int | None = None,
        urls: Mapping[str, str] | None = None,
        source: str = "",
    ) -> None:
        facts = {"name": name, "size_mb": size_mb, "licence": licence, "source": source}
        super().__init__(files, urls=None if raw else urls, **facts)  # type: ignore[arg-type]
        self.raw = Door(raw, urls=urls, **facts) if raw else None  # type: ignore[arg-type]
        self.scale, self.positive, self.features = scale, positive, features

    def local(self) -> Path:
        """The verified file, downloaded if need be.

        Raises:
            MissingData: it cannot be had.
        """
        (file,) = self.files
        if self.raw is None:
            return self.path(file)
        try:
            return self.path(file)
        except MissingData:
            (file,) = self.raw.files
            return self.raw.path(file)

    def fetch(self) -> None:
        """Make the file available locally; raises `MissingData`."""
        self.local()

    def load(self) -> Table:
        """Features (sparse; dense if scaled) and labels; the same object at every call in one process.

        Raises:
            MissingData: as `local`.
        """
        return _read(self.name, self.local(), self.scale, self.positive, self.features)


@lru_cache(maxsize=8)
def _read(name: str, path: Path, scale: bool, positive: float | None, features: int | None) -> Table:
    from sklearn.datasets import load_svmlight_file

    X, labels = load_svmlight_file(str(path), n_features=features)
    return Table(name, scale_columns(X) if scale else X.tocsr(), signs(labels, positive))
