"""A group: one run in processes of its own, as a torch-elastic group of ranks or alone on chosen GPUs.

Each group has its own rendezvous on a free port, so that any number of them share a machine. A rank that dies
restarts the group from the run's last checkpoint. The agent lives in ``runners.agent``, ranks in ``runners.rank``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from runners.errors import ConfigError
from runners.recorder import STOP_FILE
from runners.store import write_atomic

Config = dict[str, Any]
Gpu = int | str  # a number, or what CUDA calls it: GPU-1f3e..., MIG-...
DEFAULT_RESTARTS = 3
STOP_SECONDS = 5.0  # Ctrl-C: how long runs may take to save their checkpoints


def gpus_asked(config: Config) -> int:
    """GPUs of a run: one per rank on a cuda device, more if its task's resources say so."""
    if not str(config.get("device") or "cpu").startswith("cuda"):
        return 0
    resources = config["task"].get("resources") or {}
    return max(int(config.get("ranks") or 1), int(resources.get("gpus") or 0))


def check_gpus_used(configs: Iterable[Config], asked: Any) -> None:
    """Raise ConfigError where the command line asks for GPUs (``task.resources.gpus``) that no run would use."""
    if asked and not any(map(gpus_asked, configs)):
        raise ConfigError(f"task.resources.gpus={asked}: no run here is on a GPU; add device=cuda")


def check_devices(config: Config, gpus: int | None = None) -> None:
    """Raise ConfigError where a run asks for a device that is not here, or for more ranks or GPUs than there are.

    Args:
        config: a run's config.
        gpus: how many of the GPUs visible on this machine it may use (None: all).
    """
    ranks = int(config.get("ranks") or 1)
    device = str(config.get("device") or "cpu")
    if device == "mps" and not _has_mps():
        raise ConfigError(f"device={device}: this machine has no Apple GPU that PyTorch can use")
    if asked := gpus_asked(config):
        if not visible_gpus():
            raise ConfigError(f"device={device}: this machine has no NVIDIA GPU")
        have = len(visible_gpus()) if gpus is None else gpus
        index = int(device.partition(":")[2] or 0)
        what = f"ranks={ranks} on {device}" if asked == ranks else f"resources.gpus={asked}"
        if max(asked, index + 1) > have:
            raise ConfigError(f"{what}: {have} GPUs may be used here")
    elif ranks > 1 and ranks > (cores := len(os.sched_getaffinity(0))):
        raise ConfigError(f"ranks={ranks} on {device}: this machine has {cores} cores")


def _has_mps() -> bool:
    if platform.system() != "Darwin":
        return False
    import torch

    return torch.backends.mps.is_available()


def visible_gpus() -> list[Gpu]:
    """GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return list(range(_installed_gpus()))
    parts = itertools.takewhile(lambda part: part and part != "-1", map(str.strip, visible.split(",")))
    return [int(part) if part.isdigit() else part for part in parts]


@functools.cache
def _installed_gpus() -> int:
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def run_group(
    config: Config,
    run_id: str,
    folder: Path,
    *,
    root: Path,
    fingerprint: str,
    labels: dict[str, str],
    tracker: Config | None,
    deadline_seconds: float | None,
    gpus: Sequence[Gpu] = (),
    progress_file: Path | None = None,
) -> None:
    """Run all ranks of a run to their end; they leave ``result.json`` or ``failure.json`` in its folder."""
    spec = {
        "config": config,
        "run_id": run_id,
        "folder": str(folder.resolve()),
        "root": str(root.resolve()),
        "fingerprint": fingerprint,
        "labels": labels,
        "tracker": tracker,
        "deadline": time.time() + deadline_seconds if deadline_seconds else None,  # for all restarts together
        "progress_file": str(progress_file.resolve()) if progress_file else None,
    }
    write_atomic(folder / "group.json", json.dumps(spec))
    agent(config, folder, gpus=gpus)


def agent(config: Config, folder: Path, *, gpus: Sequence[Gpu] = (), log: str = "group.log") -> None:
    """Run this node's ranks to their end; their output goes to a file in the run's folder."""
    ranks = int(config.get("ranks") or 1)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    if ranks == 1:
        environment |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        command = [sys.executable, "-m", "runners.rank", str(folder / "group.json"), str(os.getpid())]
    else:
        command = _elastic(config, ranks, folder)
    with (folder / log).open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            process.wait()
        except BaseException as reason:
            if isinstance(reason, KeyboardInterrupt):
                with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                    (folder / STOP_FILE).touch()
                    process.wait(STOP_SECONDS)
            process.kill()  # its ranks end with it
            process.wait()
            raise


def _elastic(config: Config, ranks: int, folder: Path) -> list[str]:
    nodes = int(os.environ.get("REPRISE_NODES") or 1)
    restarts = (config["task"].get("resources") or {}).get("restarts", DEFAULT_RESTARTS)
    return [
        *(sys.executable, "-m", "runners.agent", str(os.getpid()), *_rendezvous(nodes)),
        f"--nproc-per-node={-(-ranks // nodes)}",
        f"--max-restarts={int(restarts)}",
        "--monitor-interval=0.2",
        "--shutdown-timeout=1",  # ranks pass SIGTERM by (see runners.rank)
        "--signals-to-handle=SIGQUIT",
        *("--module", "runners.rank", str(folder / "group.json")),
    ]


def _rendezvous(nodes: int) -> list[str]:
    """A rendezvous of the group's own: on this machine, or over the nodes of a cluster allocation."""
    if nodes == 1:
        return ["--standalone", "--nnodes=1"]
    endpoint = os.environ["REPRISE_RENDEZVOUS"]
    return ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--nnodes={nodes}"]


def end_of(log: Path) -> str:
    """How the ranks ended, in words, from the log of a group that left neither result nor failure."""
    text = log.read_text(errors="replace") if log.exists() else ""
    codes = [int(code) for code in re.findall(r"exitcode:? *: *(-?\d+)", text)]
    if codes and codes[-1] < 0:
        return f"a rank was killed by signal {-codes[-1]}, again after {DEFAULT_RESTARTS} restarts"
    lines = [line for line in text.splitlines() if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return lines[-1] if lines else "the ranks ended without a result"


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies, so that a killed sweep leaves no orphans.

    Args:
        parent: process id of the parent (None: not known); if it is dead already, so is this process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def pass_signals_by() -> None:
    """Outlive the signals with which a cluster or a terminal warns all processes at once.

    The sweep or job that started the group hears them too and has the run save and stop. Handlers that do nothing,
    unlike ignored signals, are not inherited by what a task starts.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
