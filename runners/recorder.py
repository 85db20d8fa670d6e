"""The recorder: all that the harness hands into a run (see ``tasks/run.py`` for the interface tasks see)."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runners.build import Artifact

if TYPE_CHECKING:
    import numpy as np
    import torch

    from runners.artifacts import ArtifactStore
    from runners.trackers import Tracker

T = TypeVar("T")
PROGRESS_SECONDS = 0.5
CHECKPOINT_SECONDS = float(os.environ.get("REPRISE_CHECKPOINT_SECONDS", "60"))
STOP_FILE = "stop"  # appears in a run's folder when it should save and stop
STOP_GRACE_SECONDS = 20.0  # a run that saves no checkpoint stops this long after the stop file is seen


class Diverged(FloatingPointError):
    """A metric became NaN or infinite: the run ends with status ``diverged``, which is a result."""

    finite: dict[str, Any]  # the metrics beside it that are finite


class Stopped(Exception):
    """The machine is about to be taken away (pre-emption, Ctrl-C): the run goes on from its checkpoint later."""


class DeadlineReached(Exception):
    """The run used up its time; its status is ``timeout``."""


class Recorder:
    """Records one run into its folder."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        *,
        fingerprint: str = "",
        artifacts: ArtifactStore | None = None,
        tracker: Tracker | None = None,
        deadline: float | None = None,
        progress_file: Path | None = None,
        rank: int = 0,
        ranks: int = 1,
    ):
        self.dir = folder
        self.rank, self.ranks = rank, ranks
        self.seed = int(config["seed"])
        self.deadline = deadline
        self.values: dict[str, Any] = {}
        self.artifacts_used: dict[str, str] = {}
        self._device = str(config.get("device") or "cpu")
        self._dtype: str | None = config.get("dtype")
        self._fingerprint = fingerprint
        self._artifacts = artifacts
        self._tracker = tracker
        self._progress_file = progress_file
        self._progress_at = 0.0
        self._saved_at = time.monotonic()
        self._stop_seen: float | None = None
        self._told = False  # to stop after the next checkpoint; all ranks agree on it
        self._resumable = False  # whether the task has anything to do with checkpoints
        self._looked_at = 0.0
        self._metrics = _Lines(folder / "metrics.jsonl")
        self._rows = _Lines(folder / "rows.jsonl")
        self._checkpoint = folder / "checkpoint.pt"
        # Lines of a killed attempt stay until the task restores its checkpoint or records something new.
        self._fresh = False
        if not self._checkpoint.exists():
            self._begin()

    # -- what a task calls ---------------------------------------------------------------------------------------

    def log(self, step: int | float, **metrics: Any) -> None:
        """Append one line of metrics. Raises Diverged on NaN or infinity (after writing the finite ones)."""
        self._begin()
        line: dict[str, Any] = {"step": step if isinstance(step, int) else float(step)}
        try:
            self._write(line | _finite(f"step {step}", metrics))
        except Diverged as problem:
            self._write(line | problem.finite)
            raise

    def rows(self, unit: str, table: Any) -> None:
        """Record one row per replicate: a DataFrame, a mapping of columns or a list of mappings."""
        self._begin()
        columns = _columns(table)
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"rows('{unit}'): columns of different lengths {sorted(lengths)}")
        count = lengths.pop() if lengths else 0
        columns.setdefault("i", list(range(count)))
        self._rows.add({"unit": unit, "columns": columns})

    def summary(self, **values: Any) -> None:
        """Record scalars of the whole run; None means "never happened". Raises Diverged on NaN or infinity."""
        self._begin()
        try:
            self.values |= _finite("summary", values)
        except Diverged as problem:
            self.values |= problem.finite
            raise

    def track(self, iterable: Iterable[T], total: int | None = None) -> Iterator[T]:
        """Iterate with progress; raises DeadlineReached (status ``timeout``) when the run's time is used up."""
        if total is None and hasattr(iterable, "__len__"):
            total = len(iterable)  # type: ignore[arg-type]
        for index, item in enumerate(iterable):
            now = time.monotonic()
            if self.deadline is not None and now > self.deadline:
                raise DeadlineReached(f"out of time after {index} of {total or '?'} steps")
            grace = STOP_GRACE_SECONDS if self._resumable else 0.0
            if self._stopping(now) and now - (self._stop_seen or now) >= grace:
                raise Stopped("told to stop")
            if now - self._progress_at >= PROGRESS_SECONDS:
                self._progress_at = now
                self._show(index, total)
            yield item

    def due(self) -> bool:
        """Whether a checkpoint is due: the last one is a minute old, or the run is told to stop. Ranks agree."""
        self._resumable = True
        now = time.monotonic()
        self._told = self._stopping(now)
        due = self._told or now - self._saved_at >= CHECKPOINT_SECONDS
        if self.ranks > 1:
            due, self._told = _from_rank_0(due, self._told, self.device)
        return due

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, atomically; recorded metrics up to here belong to it. Stops a run told to stop."""
        import torch

        self._begin()
        record = {
            "state": dict(state),
            "fingerprint": self._fingerprint,
            "sizes": (self._metrics.size(), self._rows.size()),
            "values": dict(self.values),
        }
        spare = self.dir / ".checkpoint.pt"
        torch.save(record, spare)
        os.replace(spare, self._checkpoint)
        self._after_save()

    def restore(self) -> dict[str, Any] | None:
        """Return the last checkpoint's state (metrics are cut back to it), or None for a fresh start."""
        self._resumable = True
        record = None if self._fresh else self._read_checkpoint()
        if record is None:
            return None
        self._fresh = True
        self._metrics.cut(record["sizes"][0])
        self._rows.cut(record["sizes"][1])
        self.values = dict(record["values"])
        state: dict[str, Any] = record["state"]
        return state

    def artifact(self, node: Artifact) -> Path:
        """Folder of a finished preparation; built now (once, under a lock) if it is not there yet."""
        if not isinstance(node, Artifact):
            raise TypeError("run.artifact() takes a node marked '_artifact_: true' in the task's YAML")
        if self._artifacts is None:
            raise RuntimeError("this run has no artifact store")
        folder, content = self._artifacts.get(node)
        self.artifacts_used[folder.parent.name + "/" + folder.name] = content
        return folder

    def generator(self, name: str, i: int = 0) -> torch.Generator:
        """A torch generator seeded by (run seed, name, i) alone, on the CPU."""
        import torch

        return torch.Generator().manual_seed(self._seed_of(name, i) >> 1)

    def rng(self, name: str, i: int = 0) -> np.random.Generator:
        """A NumPy generator seeded by (run seed, name, i) alone."""
        import numpy as np

        return np.random.default_rng(self._seed_of(name, i))

    @cached_property
    def device(self) -> torch.device:
        """The device the run was given."""
        import torch

        return torch.device(self._device)

    @cached_property
    def dtype(self) -> torch.dtype | None:
        """Floating-point type asked for, or None for the task's own choice."""
        if self._dtype is None:
            return None
        import torch

        found: torch.dtype = getattr(torch, self._dtype)
        return found

    # -- what the harness calls ----------------------------------------------------------------------------------

    def close(self, *, ended: bool) -> None:
        """Close the files; a run that has not ended keeps what its last checkpoint needs."""
        if ended:
            self._begin()
        self._metrics.close()
        self._rows.close()

    def finish(self) -> None:
        """The run is a result: its checkpoint has served."""
        self._checkpoint.unlink(missing_ok=True)

    def _begin(self) -> None:
        """Start with empty files, unless a checkpoint was restored."""
        if not self._fresh:
            self._fresh = True
            self._metrics.cut(0)
            self._rows.cut(0)
            self._checkpoint.unlink(missing_ok=True)

    def _write(self, line: dict[str, Any]) -> None:
        self._metrics.add(line)
        if self._tracker is not None:
            self._tracker.log(line)

    def _read_checkpoint(self) -> dict[str, Any] | None:
        if not self._checkpoint.exists():
            return None
        import torch

        try:
            record: dict[str, Any] = torch.load(self._checkpoint, weights_only=False)
        except (
            Exception
        ):  # torn when a machine lost power, or of classes that are gone: the run starts afresh
            return None
        files = (self._metrics, self._rows)
        torn = any(file.size() < size for file, size in zip(files, record["sizes"], strict=True))
        return (
            None if torn or record["fingerprint"] != self._fingerprint else record
        )  # or other code wrote it

    def _stopping(self, now: float) -> bool:
        """Whether the stop file is there (looked for twice a second at most)."""
        if self._stop_seen is None and now - self._looked_at >= PROGRESS_SECONDS:
            self._looked_at = now
            if (self.dir / STOP_FILE).exists():
                self._stop_seen = now
        return self._stop_seen is not None

    def _after_save(self) -> None:
        now = self._saved_at = time.monotonic()
        if self._told or (self.ranks == 1 and self._stopping(now)):
            raise Stopped("saved a checkpoint and stopped, as told")

    def _seed_of(self, name: str, i: int) -> int:
        text = f"{self.seed}\0{name}\0{i}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")

    def _show(self, index: int, total: int | None) -> None:
        if self._progress_file is not None:
            try:
                self._progress_file.write_text(f"{self.dir.name} {index} {total or 0}")
            except OSError:  # progress is a courtesy: a full disk shows where results are written
                self._progress_file = None


class SilentRecorder(Recorder):
    """What ranks other than 0 get: the same interface and the same draws, nothing written."""

    def log(self, step: int | float, **metrics: Any) -> None:
        """Check the values as rank 0 does, so that all ranks stop together where all see the same values."""
        _finite(f"step {step}", metrics)

    def rows(self, unit: str, table: Any) -> None:
        """Nothing: rank 0 records."""

    def summary(self, **values: Any) -> None:
        """Check the values as rank 0 does."""
        self.values |= _finite("summary", values)

    def save(self, state: Mapping[str, Any]) -> None:
        """Nothing: rank 0 writes the checkpoint (its state is that of all)."""
        self._after_save()

    def restore(self) -> dict[str, Any] | None:
        """The checkpoint that rank 0 restores too."""
        self._resumable = True
        record = self._read_checkpoint()
        if record is None:
            return None
        self.values = dict(record["values"])
        state: dict[str, Any] = record["state"]
        return state

    def close(self, *, ended: bool) -> None:
        """Nothing is open."""

    def _begin(self) -> None:
        """Files are rank 0's."""


def _from_rank_0(due: bool, stop: bool, device: torch.device) -> tuple[bool, bool]:
    import torch
    import torch.distributed as dist

    flags = torch.tensor([due, stop], dtype=torch.int32, device=device)
    dist.broadcast(flags, src=0)
    return bool(flags[0]), bool(flags[1])


def _finite(where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON scalars; raises Diverged, with the finite ones in ``.finite``, if any is not finite."""
    plain = {key: _plain(value, key) for key, value in values.items()}
    bad = [key for key, value in plain.items() if isinstance(value, float) and not math.isfinite(value)]
    if bad:
        problem = Diverged(f"{where}: {', '.join(bad)} is not finite")
        problem.finite = {key: value for key, value in plain.items() if key not in bad}
        raise problem
    return plain


class _Lines:
    """A file of JSON lines, made when its first line comes (on many disks a file costs more than its content)."""

    def __init__(self, path: Path):
        self.path = path
        self._file: io.FileIO | None = None

    def add(self, record: dict[str, Any]) -> None:
        """Append a line, unbuffered: it is in the file when this returns, whatever kills the process next."""
        if self._file is None:
            self._file = io.FileIO(self.path, "ab")
        line = json.dumps(record).encode() + b"\n"
        written = self._file.write(line)
        while written < len(line):  # a disk that fills up takes a part first, and says so at the next write
            written += self._file.write(line[written:])

    def size(self) -> int:
        """Bytes written so far, by this attempt or an earlier one."""
        return self.path.stat().st_size if self.path.exists() else 0

    def cut(self, size: int) -> None:
        """Keep the first ``size`` bytes; none of them: no file."""
        if size:
            os.truncate(self.path, size)
        else:
            self.close()
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; another line opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _plain(value: Any, key: str) -> Any:
    """A JSON scalar: tensors and NumPy scalars become Python numbers."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "item") and getattr(value, "size", None) is not None:
        plain = value.item()
        if isinstance(plain, bool | int | float | str):
            return plain
    raise TypeError(f"metric '{key}' is a {type(value).__name__}: expected a number, a text or None")


def _columns(table: Any) -> dict[str, list[Any]]:
    if hasattr(table, "to_dict") and hasattr(table, "columns"):
        table = table.to_dict("list")
    if isinstance(table, Mapping):
        return {str(key): [_plain(v, str(key)) for v in list(column)] for key, column in table.items()}
    names = {key: None for row in table for key in row}
    return {str(key): [_plain(row.get(key), str(key)) for row in table] for key in names}
