"""A group: one run in processes of its own, as a torch-elastic group of ranks or alone on chosen GPUs.

Each group has its own rendezvous on a free port, so that any number of them share a machine. A rank that dies
restarts the group from the run's last checkpoint. Ranks live in ``runners.rank``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runners.errors import ConfigError
from runners.store import write_atomic

Config = dict[str, Any]
DEFAULT_RESTARTS = 3


def check_devices(config: Config, gpus: int | None = None) -> None:
    """Raise ConfigError where a run asks for more ranks than this machine has devices."""
    ranks = int(config.get("ranks") or 1)
    device = str(config.get("device") or "cpu")
    if device.startswith("cuda"):
        have, what = (count_gpus() if gpus is None else gpus), "GPUs"
    else:
        have, what = len(os.sched_getaffinity(0)), "cores"
    if ranks > have and (ranks > 1 or what == "GPUs"):
        raise ConfigError(f"ranks={ranks} on {device}: this machine has {have} {what}")


def count_gpus() -> int:
    """GPUs this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip()])
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
    gpus: Sequence[int] = (),
    progress_file: Path | None = None,
) -> None:
    """Run all ranks of a run to their end; they leave ``result.json`` or ``failure.json`` in its folder."""
    spec = {
        "config": config,
        "run_id": run_id,
        "folder": str(folder),
        "root": str(root),
        "fingerprint": fingerprint,
        "labels": labels,
        "tracker": tracker,
        "deadline_seconds": deadline_seconds,
        "progress_file": str(progress_file) if progress_file else None,
    }
    write_atomic(folder / "group.json", json.dumps(spec))
    agent(config, folder, gpus=gpus)


def agent(config: Config, folder: Path, *, gpus: Sequence[int] = (), log: str = "group.log") -> None:
    """Run this node's torch-elastic agent to its end; its output goes to a file in the run's folder."""
    resources = config["task"].get("resources") or {}
    nodes = int(os.environ.get("REPRISE_NODES") or 1)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", *_rendezvous(nodes)),
        f"--nproc-per-node={-(-int(config.get('ranks') or 1) // nodes)}",
        f"--max-restarts={int(resources.get('restarts', DEFAULT_RESTARTS))}",
        "--monitor-interval=0.2",
        *("--module", "runners.rank", str(folder / "group.json")),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    with (folder / log).open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, preexec_fn=die_with_parent
        )
        try:
            process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise


def _rendezvous(nodes: int) -> list[str]:
    """A rendezvous of the group's own: on this machine, or over the nodes of a cluster allocation."""
    if nodes == 1:
        return ["--standalone", "--nnodes=1"]
    endpoint = os.environ["REPRISE_RENDEZVOUS"]
    return ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--nnodes={nodes}"]


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent dies, so that a killed sweep leaves no orphans."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
