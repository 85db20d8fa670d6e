"""Curves of finished runs: read when asked for, kept while there is room."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners import store

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

KEPT = 10_000  # curves in memory: a store may hold far more


class Curves:
    """``curves(id)`` is a run's metrics as a frame, ``curves.columns(id)`` as arrays (twenty times cheaper)."""

    def __init__(self, folder_of: Callable[[str], Path | str], records: Mapping[str, dict[str, Any]]):
        self._folder_of, self._records = folder_of, records
        self._frame = lru_cache(maxsize=KEPT)(self._read_frame)
        self._arrays = lru_cache(maxsize=KEPT)(self._read_columns)

    def __call__(self, run_id: str) -> pd.DataFrame:
        """One row per logged step; ``attrs`` hold the run's config, summary and status."""
        return self._frame(run_id)

    def columns(self, run_id: str) -> dict[str, np.ndarray]:
        """Each metric (and ``step``) as floats, one per logged step; NaN where a step has no such number."""
        return self._arrays(run_id)

    def _read_frame(self, run_id: str) -> pd.DataFrame:
        record = self._records[run_id]
        shared = {key: _Shared(record.get(key) or {}) for key in ("config", "summary")}
        return store.curve(self._folder_of(run_id), record | shared)

    def _read_columns(self, run_id: str) -> dict[str, np.ndarray]:
        import numpy as np

        lines = store.read_lines(f"{self._folder_of(run_id)}/metrics.jsonl")
        if len(set(map(tuple, lines))) == 1:  # equal names in equal order
            with contextlib.suppress(TypeError, ValueError):  # all are numbers, as they nearly always are
                table = np.fromiter(chain.from_iterable(map(dict.values, lines)), dtype=float)
                return dict(zip(lines[0], table.reshape(len(lines), -1).T, strict=True))
        names = dict.fromkeys(name for line in lines for name in line)
        return {name: numbers([line.get(name) for line in lines]) for name in names}


class _Shared(dict[str, Any]):
    """A mapping that a frame's ``attrs`` hand on as it is: pandas would copy it, deeply, with every operation."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return self


def numbers(values: list[Any]) -> np.ndarray:
    """Values as floats; NaN for what is no number."""
    import numpy as np
    import pandas as pd

    try:
        return np.array(values, dtype=float)
    except (TypeError, ValueError):
        return pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").to_numpy(dtype=float)
