"""Two classes of the digits of scikit-learn as a binary problem."""

from functools import lru_cache

import numpy as np

from tasks.data.digits import Digits
from tasks.data.tabular import Table


class DigitPair(Digits):
    """The images of two digits, flattened, grey values in [0, 1].

    Args:
        positive, negative: the digits.
        others: as `Digits`.
    """

    def __init__(self, content: str, *, positive: int, negative: int, **facts: object) -> None:
        super().__init__(content, **facts)  # type: ignore[arg-type]
        self.positive, self.negative = positive, negative

    def load(self) -> Table:
        """Features (rows, 64) and labels; the same object at every call in one process; raises `MissingData`."""
        return _pair(self.name, self.content, self.positive, self.negative)


@lru_cache(maxsize=4)
def _pair(name: str, content: str, positive: int, negative: int) -> Table:
    digits = Digits(content)
    labels = digits.labels().numpy()
    X = digits.images().flatten(1).double().numpy()
    kept = (labels == positive) | (labels == negative)
    return Table(name, X[kept], np.where(labels[kept] == positive, 1.0, -1.0))
