"""What a task may ask of the run that examines a method."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch

T = TypeVar("T")

Scalar = float | int | bool | str | None


@runtime_checkable
class Run(Protocol):
    """One method, one task, one seed: the only object the harness hands to `Task.evaluate`.

    Attributes:
        seed: the run's seed; every generator below derives from it.
        device: where the task places its tensors.
        dtype: floating-point type asked for, or None for the task's own choice.
        dir: the run's folder, for files a later run needs.
        deadline: value of `time.monotonic()` at which the run ends, or None.
        rank, ranks: this process's rank and their number (0 and 1 unless the run is distributed). Every rank calls
            `Task.evaluate` and draws the same numbers; what rank 0 records is the run's, the others stay silent.
            A task that can be distributed has `ranks` among its `resources`.
    """

    seed: int
    device: "torch.device"
    dtype: "torch.dtype | None"
    dir: Path
    deadline: float | None
    rank: int
    ranks: int

    def log(self, *, step: int, **metrics: float) -> None:
        """Append one line of metrics (at most about 300 lines a run).

        Raises:
            FloatingPointError: a value is NaN or infinite; the run ends as `diverged`, which is a result.
        """

    def rows(self, unit: str, table: Any) -> None:
        """Record one row per replicate (`unit`: repeat, image, instance, block, ...).

        `table` is a DataFrame, a mapping of equally long columns or a list of mappings. Column `i` is the
        index of the replicate and is added as 0..n-1 if absent. Replicate i draws from `generator(name, i)`
        only, so that its numbers do not depend on the batch it was computed in.
        """

    def summary(self, **values: Scalar) -> None:
        """Record scalars of the whole run; None stands for "never happened"."""

    def track(self, iterable: Iterable[T], total: int | None = None) -> Iterator[T]:
        """Iterate with progress; ends the run at its deadline."""

    def due(self) -> bool:
        """Whether a checkpoint is due: the last one is a minute old, or the machine is about to be taken away.

        The idiom is ``if run.due(): run.save(state)`` inside the loop; `save` then ends a run that must stop.
        All ranks ask at the same points of their loops, and get the same answer.
        """

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint, atomically, in place of the last one."""

    def restore(self) -> dict[str, Any] | None:
        """Last checkpoint or None; cuts the metrics back to what they were when it was saved."""

    def generator(self, name: str, i: int = 0) -> "torch.Generator":
        """CPU generator seeded from (seed, name, i), the same at every call."""

    def rng(self, name: str, i: int = 0) -> "np.random.Generator":
        """NumPy generator seeded from (seed, name, i), the same at every call."""

    def artifact(self, node: Any) -> Path:
        """Folder of the finished artifact that an `_artifact_: true` node describes; built on first use."""
