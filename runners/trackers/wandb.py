"""Weights & Biases: every run and every report is a run there, grouped by paper and experiment.

Offline unless asked otherwise. A thread of its own talks to wandb, so that a slow or absent server holds no run up;
whatever goes wrong is one line on stderr, and the run goes on. wandb cannot append to an offline run: each attempt of a
run is a run of its own there, with our run's id in its config. Our own records stay the source of every page.
"""

from __future__ import annotations

import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Literal

from runners import identity, places, provenance

Action = Callable[[Any], None]
BATCH_SECONDS = 1.0
LEAVE_SECONDS = 10.0
LONGEST_GROUP = 128  # a limit of the server
_warned: set[str] = set()
_unreachable = threading.Event()  # set once a server did not answer: what follows in this process is offline


class Wandb:
    """One run's tracker (see :class:`runners.trackers.Tracker`).

    ``project, entity, mode``: as in ``wandb.init`` (``offline`` or ``online``). ``dir``: wandb's files lie in its
    folder ``wandb`` (default: the store's root). ``finish_seconds``: how long the end of a run waits for wandb.
    """

    def __init__(
        self,
        config: dict[str, Any],
        run_id: str,
        labels: dict[str, str],
        folder: Path,
        *,
        finish_seconds: float = 60.0,
        **options: Any,
    ):
        method, task = identity.method_name(config), str(config["task"]["_name_"])
        group = "/".join(labels[key] for key in ("paper", "experiment") if labels.get(key))
        self._session = _Session(
            finish_seconds,
            options,
            id=run_id,
            name=f"{method.rpartition('/')[2]} {task.rpartition('/')[2]} seed {config['seed']}",
            group=group[:LONGEST_GROUP] or None,
            job_type=labels.get("scale", "run"),
            tags=sorted({task.partition("/")[0], *labels.values()} - {""}),
            config={**identity.canonical(config), "run_id": run_id, "folder": folder.name, **labels},
        )

    def log(self, line: dict[str, Any]) -> None:
        """Take one line of metrics: a row of the run's history, with its ``step`` as a column."""
        self._session.put(lambda run: run.log(line))

    def finish(self, status: str, summary: dict[str, Any]) -> None:
        """Write the summary and close the run."""

        def last(run: Any) -> None:
            run.config.update({"provenance": provenance.describe()})
            run.summary.update({**summary, "status": status})

        self._session.put(last)
        self._session.end(exit_code=0 if status in ("done", "diverged") else 1)

    @staticmethod
    def report(
        verdicts: dict[str, Any], folder: Path, *, finish_seconds: float = 60.0, **options: Any
    ) -> None:
        """Log a report as one run: verdicts as a table and in the summary, figures as they are (SVG)."""
        paper, scale = verdicts["paper"], verdicts["scale"]
        session = _Session(
            finish_seconds,
            options,
            id=f"{paper}-{scale}",
            name=f"{paper} {scale} report",
            group=paper[:LONGEST_GROUP],
            job_type="report",
            tags=sorted({paper, scale}),
            config={key: verdicts[key] for key in ("paper", "scale", "commit", "modified", "provenance")},
        )
        session.put(lambda run: _log_report(run, verdicts, sorted((folder / "figures").glob("*.svg"))))
        session.end(exit_code=0)


COLUMNS = (
    "id",
    "verdict",
    "value",
    "low",
    "high",
    "expect",
    "reported",
    "units",
    "statistic",
    "says",
    "source",
)


def _log_report(run: Any, verdicts: dict[str, Any], figures: list[Path]) -> None:
    import wandb

    media: dict[str, Any] = {}
    for kind in ("claims", "findings"):
        entries = verdicts[kind]
        rows: list[Any] = [[_cell(entry.get(column)) for column in COLUMNS] for entry in entries]
        media[kind] = wandb.Table(columns=list(COLUMNS), data=rows, allow_mixed_types=True)
        for entry in entries:
            for column in ("verdict", "value", "low", "high", "units"):
                run.summary[f"{kind}/{entry['id']}/{column}"] = entry.get(column)
    for path in figures:
        media[f"figures/{path.stem}"] = wandb.Html(path.read_text(encoding="utf-8"), inject=False)
    run.log(media)


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


class _Session:
    """One wandb run, held by a thread that carries out what it is handed."""

    def __init__(self, seconds: float, options: dict[str, Any], **run: Any):
        self._seconds, self._options, self._run = seconds, options, run
        self._actions: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self._exit_code = 0
        self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
        try:
            import wandb  # noqa: F401 (here, so that the thread does not import what the run imports at the same time)
        except Exception as problem:
            _warn(f"{type(problem).__name__}: {problem}; it is in the extra `wandb`")
        else:
            _at_exit()
            self._thread.start()

    def put(self, action: Action) -> None:
        """Hand over an action; returns at once."""
        if self._thread.is_alive():
            self._actions.put(action)

    def end(self, exit_code: int) -> None:
        """Close the run; wait for it, but not longer than agreed."""
        if not self._thread.is_alive():
            return
        self._exit_code = exit_code
        self._actions.put(None)
        self._thread.join(self._seconds)
        if self._thread.is_alive():
            _unreachable.set()
            _warn(f"no end after {self._seconds:g} s: its record may lack the last part")

    def _work(self) -> None:
        try:
            run = self._open()
            open_ended = True
            while open_ended:
                batch = self._batch()
                open_ended = batch[-1] is not None
                for action in batch:
                    if action is not None:
                        action(run)
            run.finish(exit_code=self._exit_code)
        except BaseException as problem:  # whatever it is, it must not reach the run
            _warn(f"{type(problem).__name__}: {' '.join(str(problem).split())}")

    def _batch(self) -> list[Action | None]:
        """Wait for an action, then gather what follows within a moment; None ends the run."""
        batch = [self._actions.get()]
        until = time.monotonic() + BATCH_SECONDS
        while batch[-1] is not None:
            try:
                batch.append(self._actions.get(timeout=max(0.0, until - time.monotonic())))
            except queue.Empty:
                break
        return batch

    def _open(self) -> Any:
        if self._options.get("mode") == "online" and not _unreachable.is_set():
            try:
                return self._init("online")
            except Exception as problem:
                _unreachable.set()
                _warn(f"{type(problem).__name__}: {' '.join(str(problem).split())}; offline instead")
        return self._init("offline")

    def _init(self, mode: Literal["online", "offline"]) -> Any:
        import wandb

        options = self._options
        wandb.setup(wandb.Settings(silent=True))
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            raise RuntimeError("no API key: set WANDB_API_KEY or call `wandb login`")
        root = Path(options.get("dir") or places.outputs())
        root.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            # Its own timeouts end before we stop waiting, so that there is time to go offline. Offline there is no
            # one to wait for but the disk, and what is cut short would be lost.
            init_timeout=self._seconds / 2,
            finish_timeout=self._seconds / 2 if mode == "online" else 0.0,
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            # Our records tell the machine; the command line and the list of packages stay here.
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            x_transaction_log_flush_interval=BATCH_SECONDS,
        )
        return wandb.init(
            project=options.get("project") or "reprise",
            entity=options.get("entity"),
            dir=root,
            mode=mode,
            reinit="create_new",
            settings=settings,
            **self._run
            | {"id": f"{self._run['id']}-{secrets.token_hex(3)}"},  # each attempt is a run of its own
        )


@cache
def _at_exit() -> None:
    """At the end of this process (a worker's too) wait for wandb's service, which writes the last lines by itself."""
    Finalize(None, _leave, exitpriority=100)


def _leave() -> None:
    import wandb

    thread = threading.Thread(target=wandb.teardown, daemon=True)
    thread.start()
    thread.join(LEAVE_SECONDS)


def _warn(text: str) -> None:
    """Say it once per process, without the key."""
    key = os.environ.get("WANDB_API_KEY")
    text = text.replace(key, "***") if key else text
    if text not in _warned:
        _warned.add(text)
        print(f"wandb: {text} (the runs go on)", file=sys.stderr, flush=True)
