"""A `Run` in memory, so that a task can be tested without the harness."""

import copy
import importlib
import itertools
import math
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch

T = TypeVar("T")


def locate(dotted: str) -> Any:
    """The object that a `_target_` names."""
    module, name = dotted.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


class FakeRun:
    """Keeps in `metrics`, `tables` and `summaries` what a task reports."""

    def __init__(self, seed: int = 0, folder: Path | None = None, dtype: torch.dtype | None = None) -> None:
        self.seed = seed
        self.device = torch.device("cpu")
        self.dtype = dtype
        self.dir = folder or Path(tempfile.mkdtemp(prefix="fake-run-"))
        self.deadline: float | None = None
        self.rank, self.ranks = 0, 1
        self.always_due = False
        self.metrics: list[dict[str, float]] = []
        self.tables: dict[str, pd.DataFrame] = {}
        self.summaries: dict[str, Any] = {}
        self.stop_after: int | None = None
        self._saved: dict[str, Any] | None = None
        self._logged_at_save = 0
        self._artifacts: dict[str, Path] = {}

    def log(self, *, step: int, **metrics: float) -> None:
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise FloatingPointError(f"{name} is {value} at step {step}")
        self.metrics.append({"step": int(step), **{name: float(value) for name, value in metrics.items()}})

    def rows(self, unit: str, table: Any) -> None:
        frame = pd.DataFrame(table)
        if "i" not in frame:
            frame.insert(0, "i", range(len(frame)))
        old = self.tables.get(unit)
        self.tables[unit] = frame if old is None else pd.concat([old, frame], ignore_index=True)

    def summary(self, **values: Any) -> None:
        for name, value in values.items():
            assert value is None or isinstance(value, (float, int, bool, str)), f"{name}: {type(value)}"
        self.summaries.update(values)

    def track(self, iterable: Iterable[T], total: int | None = None) -> Iterator[T]:
        """Iterates; `stop_after` iterations in, an interruption is played."""
        yield from iterable if self.stop_after is None else itertools.islice(iterable, self.stop_after)
        if self.stop_after is not None:
            raise KeyboardInterrupt

    def due(self) -> bool:
        return self.always_due

    def save(self, state: dict[str, Any]) -> None:
        self._saved, self._logged_at_save = copy.deepcopy(state), len(self.metrics)

    def restore(self) -> dict[str, Any] | None:
        if self._saved is None:
            return None
        del self.metrics[self._logged_at_save :]
        return copy.deepcopy(self._saved)

    def generator(self, name: str, i: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(
            int(self._sequence(name, i).generate_state(1, np.uint64)[0] >> 1)
        )

    def rng(self, name: str, i: int = 0) -> np.random.Generator:
        return np.random.default_rng(self._sequence(name, i))

    def artifact(self, node: Any) -> Path:
        """Builds the node in a temporary folder, once for each of its arguments."""
        key = repr(node)
        if key not in self._artifacts:
            out = Path(tempfile.mkdtemp(prefix="fake-artifact-"))
            args = {name: self._value(value) for name, value in node.items() if not name.startswith("_")}
            locate(node["_target_"])(out, **args)
            self._artifacts[key] = out
        return self._artifacts[key]

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict) and "_target_" in value:
            if value.get("_artifact_"):
                return self.artifact(value)
            args = {name: self._value(v) for name, v in value.items() if not name.startswith("_")}
            return locate(value["_target_"])(**args)
        return value

    def _sequence(self, name: str, i: int) -> np.random.SeedSequence:
        return np.random.SeedSequence([self.seed, zlib.crc32(name.encode()), i])

    @property
    def curve(self) -> pd.DataFrame:
        return pd.DataFrame(self.metrics)
