"""What runs will cost, before they start: by earlier runs, else by published ones, else by what the YAML allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from runners import identity, places, published
from runners.group import gpus_asked
from runners.paper import needed

if TYPE_CHECKING:
    from runners.expand import Cell
    from runners.sweep import Sweep

Config = dict[str, Any]


class Known:
    """Mean wall-clock seconds of stored runs, by method, task with all its settings, device and ranks."""

    def __init__(self, results: Iterable[Config]):
        found: dict[str, list[float]] = {}
        for result in results:
            found.setdefault(_kind(result["config"]), []).append(float(result["wall_seconds"]))
        self._means = {kind: sum(times) / len(times) for kind, times in found.items()}

    def seconds(self, config: Config) -> float | None:
        """What a run likely takes, or None if no run like it is stored."""
        return self._means.get(_kind(config))


class Published:
    """Mean wall-clock seconds of the runs published at a scale, by method and task, else by task."""

    def __init__(self, scale: str):
        self.scale = scale

    def seconds(self, config: Config) -> float | None:
        """What a run took where results were published, or None if none of its task is published."""
        task = config["task"]["_name_"]
        times = self._times.get((identity.method_name(config), task)) or self._times.get((None, task))
        return sum(times) / len(times) if times else None

    @cached_property
    def _times(self) -> dict[tuple[str | None, str], list[float]]:
        found: dict[tuple[str | None, str], list[float]] = {}
        for path in sorted(places.results().glob(f"*/{self.scale}/verdicts.json")):
            for row in published.read_runs(path.parent):
                if seconds := float(row.get("seconds") or 0):
                    for method in (str(row.get("method")), None):
                        found.setdefault((method, str(row.get("task"))), []).append(seconds)
        return found


@dataclass
class Cost:
    """Cost of some runs that are still to be made."""

    runs: int = 0
    done: int = 0
    core_hours: float = 0.0
    gpu_hours: float = 0.0
    published: int = 0  # runs whose cost is that of published ones
    limited: int = 0  # runs whose cost is the most that the YAML allows
    unknown: int = 0

    def add(self, config: Config, seconds: float | None, elsewhere: float | None = None) -> None:
        """Count one run that takes so many seconds, by earlier runs here or by published ones."""
        if seconds is None and elsewhere is not None:
            seconds = elsewhere
            self.published += 1
        hours = (config["task"].get("resources") or {}).get("hours") if seconds is None else seconds / 3600
        if hours is None:
            self.unknown += 1
            return
        self.limited += seconds is None
        self.core_hours += float(hours) * int(config.get("ranks") or 1)
        self.gpu_hours += float(hours) * gpus_asked(config)

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, key) + getattr(other, key) for key in self.__dataclass_fields__))

    def __str__(self) -> str:
        parts = [count(self.runs, "run") + (f", {self.done} of them done" if self.done else "")]
        if known := self.runs - self.done - self.unknown:
            gpu = f" and {_time(self.gpu_hours, 'GPU')}" if self.gpu_hours else ""
            most = "at most" if self.limited == known else "about"
            sources = {
                "earlier runs": known - self.published - self.limited,
                "published runs": self.published,
                "resources.hours": self.limited,
            }
            basis = " and ".join(name for name, runs in sources.items() if runs)
            parts.append(f"{most} {_time(self.core_hours, 'core')}{gpu} (by {basis})")
        if self.unknown:
            parts.append(
                f"not known for {self.unknown} (no run like them is stored or published, no resources.hours)"
            )
        return "; ".join(parts)


def count(number: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def describe(sweep: Sweep, planned: Mapping[str, Iterable[Cell]]) -> str:
    """Runs and cost of each experiment of a sweep.

    Args:
        sweep: the sweep.
        planned: cells of each experiment, tuning runs among them.
    """
    known, elsewhere = Known(sweep.store.results()), Published(sweep.scale)
    lines, total, seen = [], Cost(), set()
    for name in sweep.order:
        cost = Cost()
        for cell in {cell.id: cell for cell in planned[name]}.values():
            if cell.id in seen:  # shared with an experiment above
                continue
            seen.add(cell.id)
            cost.runs += 1
            if sweep.store.look(cell.config, cell.id, None).state == "finished":
                cost.done += 1
            else:
                cost.add(cell.config, known.seconds(cell.config), elsewhere.seconds(cell.config))
        follows = needed(sweep.paper.experiments[name])
        after = f" (follows {', '.join(follows)})" if follows else ""
        lines.append(f"{name}{after}: {cost if cost.runs else 'shares its runs with those above'}")
        total += cost
    lines += [f"{name}: not run ({reason})" for name, reason in sweep.skipped.items()]
    if len(sweep.order) > 1:
        lines.append(f"in all: {total}")
    return f"{sweep.paper.slug} at scale {sweep.scale}:\n  " + "\n  ".join(lines)


def _kind(config: Config) -> str:
    canonical = identity.canonical(config)
    task = {key: None if _is_run(value) else value for key, value in canonical["task"].items()}
    return identity.digest([identity.method_name(config), task, canonical["device"], canonical["ranks"]])


def _is_run(value: Any) -> bool:
    return isinstance(value, dict) and "_run_" in value


def _time(hours: float, unit: str) -> str:
    if hours < 1:
        return f"{max(1, round(60 * hours))} {unit}-minutes"
    return f"{hours:.0f} {unit}-hours" if hours >= 10 else f"{hours:.1f} {unit}-hours"
