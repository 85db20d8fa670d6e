"""What runs inside a worker process: one executor, job after job."""

from __future__ import annotations

import os
import signal
import time
import traceback
from pathlib import Path
from typing import Any

from runners import provenance
from runners.errors import unwritable
from runners.execute import Executor, Outcome
from runners.group import die_with_parent

_executor: Executor | None = None


def start(root: str, tracker: dict[str, Any] | None, stale: str, environ: dict[str, str]) -> None:
    """Prepare this worker process (pebble calls it once).

    ``environ`` is the launcher's environment: the process that workers are forked from keeps that of its own start.
    """
    global _executor
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    die_with_parent()
    provenance.limit_threads(1)
    _executor = Executor(Path(root), tracker=tracker, stale=stale)


def work(
    config: dict[str, Any],
    run_id: str,
    fingerprint: str,
    labels: dict[str, str],
    artifact: bool,
    again: bool,
    gpus: tuple[int | str, ...] = (),
) -> dict[str, Any]:
    """Execute one job; returns the outcome as a dictionary."""
    assert _executor is not None
    if artifact:
        return prepare(_executor, config, run_id, labels).as_dict()
    outcome = _executor.run(
        config, run_id=run_id, fingerprint=fingerprint, labels=labels, again=again, gpus=gpus
    )
    return outcome.as_dict()


def prepare(executor: Executor, node: dict[str, Any], run_id: str, labels: dict[str, str]) -> Outcome:
    """Build one artifact; a failure leaves its traceback in ``<artifact>.failure.txt``."""
    from runners.build import Artifact

    started = time.perf_counter()
    log = executor.artifacts.failure_log(node)
    log.unlink(missing_ok=True)
    try:
        executor.artifacts.get(Artifact(node))
    except (Exception, SystemExit) as problem:
        if isinstance(problem, OSError) and unwritable(problem):
            raise
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(traceback.format_exc())
        error = f"{type(problem).__name__}: {problem} (traceback in {os.path.relpath(log)})"
        error = error.replace("<paper>", labels.get("paper", "<paper>"))  # in what missing data says
        return Outcome(run_id, "failed", time.perf_counter() - started, error=error)
    return Outcome(run_id, "done", time.perf_counter() - started)
