"""Tables for binary classification, as the doors of LIBSVM and scikit-learn sets return them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp


@dataclass(frozen=True, eq=False)
class Table:
    """Features X (rows, features), sparse CSR or dense float64, and labels y (rows,) in {-1, 1}.

    Two tables are equal only if they are the same object, so that a table can key a cache.
    """

    name: str
    X: Any
    y: np.ndarray


def signs(labels: np.ndarray, positive: float | None = None) -> np.ndarray:
    """Labels as -1 and 1: 1 for `positive`, or for the larger of two labels.

    Raises:
        ValueError: there are not two labels, or `positive` is none of them.
    """
    known = np.unique(labels)
    if positive is None:
        if known.size != 2:
            raise ValueError(f"two labels are expected, not {known[:5]}: name the positive one")
        positive = float(known[1])
    if positive not in known:
        raise ValueError(f"no label {positive:g} among {known[:5]}")
    return np.where(labels == positive, 1.0, -1.0)


def scale_columns(X: Any) -> np.ndarray:
    """Every column mapped linearly onto [-1, 1], constant columns to 0 (what LIBSVM's `_scale` sets are)."""
    dense = X.toarray() if sp.issparse(X) else np.asarray(X, dtype=float)
    low, high = dense.min(axis=0), dense.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    return np.where(high > low, 2 * (dense - low) / width - 1, 0.0)
