"""Door to the small real data sets that scikit-learn ships."""

import hashlib
from functools import lru_cache

import numpy as np

from tasks.data.resolve import Door, MissingData
from tasks.data.tabular import Table, scale_columns, signs


class SklearnSet(Door):
    """One of scikit-learn's bundled classification sets as a binary problem.

    Args:
        dataset: `breast_cancer`, `digits`, `iris` or `wine`.
        positive: class against all others.
        content: SHA-256 of the bytes of features and labels (float64, C order): they must be the ones the
            results were made with.
        scale: map every feature onto [-1, 1].
        files: none; the package holds the data.
        name, size_mb, licence, source: as `Door`.
    """

    def __init__(
        self,
        dataset: str,
        *,
        positive: float,
        content: str,
        scale: bool = True,
        files: dict[str, str] | None = None,
        name: str,
        size_mb: float = 0.0,
        licence: str = "BSD-3-Clause (scikit-learn)",
        source: str = "bundled with scikit-learn",
    ) -> None:
        super().__init__(files or {}, name=name, size_mb=size_mb, licence=licence, source=source)
        self.dataset, self.positive, self.content, self.scale = dataset, positive, content, scale

    def fetch(self) -> None:
        """Check that the installed package has the data; raises `MissingData`."""
        self.load()

    def load(self) -> Table:
        """Features (dense) and labels; the same object at every call in one process.

        Raises:
            MissingData: this version of scikit-learn bundles other numbers.
        """
        return _read(self.dataset, self.name, self.positive, self.content, self.scale)


@lru_cache(maxsize=8)
def _read(dataset: str, name: str, positive: float, content: str, scale: bool) -> Table:
    from sklearn import datasets

    X, labels = getattr(datasets, f"load_{dataset}")(return_X_y=True)
    X, labels = np.ascontiguousarray(X, dtype=np.float64), np.ascontiguousarray(labels, dtype=np.float64)
    digest = hashlib.sha256(X.tobytes() + labels.tobytes()).hexdigest()
    if digest != content:
        raise MissingData(
            f"{name}: the installed scikit-learn bundles other numbers (SHA-256 {digest[:16]}...)"
        )
    return Table(name, scale_columns(X) if scale else X, signs(labels, positive))
