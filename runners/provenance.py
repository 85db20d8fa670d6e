"""Provenance and cost: what code, packages and hardware made a number, and how much work it was."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import platform
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from runners import places

# Libraries whose version can change a number; recorded if a run has loaded them.
WATCHED = (
    "torch",
    "numpy",
    "scipy",
    "pandas",
    "sklearn",
    "transformers",
    "tokenizers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "botorch",
    "gpytorch",
    "geoopt",
    "torch_geometric",
    "diffusers",
    "gymnasium",
    "mujoco",
    "networkx",
    "cma",
    "gguf",
    "safetensors",
    "skfolio",
    "optax",
    "statsmodels",
)
_DISTRIBUTION = {"sklearn": "scikit-learn"}


@lru_cache(maxsize=1)
def commit() -> tuple[str, bool]:
    """The project's commit (12 digits) and whether tracked files differ from it; ("", False) outside git."""

    def git(*arguments: str) -> str:
        # Without optional locks: a process killed while it looks must not leave the checkout locked.
        command = ["git", "--no-optional-locks", "-C", str(places.HOME), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD"), bool(
            git("status", "--porcelain", "-uno", "--", ":!results")
        )
    except (OSError, subprocess.CalledProcessError):
        return "", False


@lru_cache(maxsize=1)
def hardware() -> dict[str, Any]:
    """Processor, cores and memory of this machine."""
    model = platform.processor() or platform.machine()
    memory = None
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return {"cpu": model, "cores": os.cpu_count(), "memory_gb": memory, "system": platform.system()}


def _gpu() -> dict[str, str]:
    """Name of the GPU that this process has used, if it has."""
    torch = sys.modules.get("torch")
    return {"gpu": torch.cuda.get_device_name()} if torch and torch.cuda.is_initialized() else {}


_versions: dict[str, str] = {}


def packages() -> dict[str, str]:
    """Versions of the watched libraries this process has loaded."""
    for name in WATCHED:
        if name in sys.modules and name not in _versions:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                _versions[name] = importlib.metadata.version(_DISTRIBUTION.get(name, name))
    return dict(sorted(_versions.items()))


def describe() -> dict[str, Any]:
    """Everything about where a number came from."""
    revision, dirty = commit()
    return {
        "commit": revision,
        "dirty": dirty,
        "python": platform.python_version(),
        "packages": packages(),
        "hardware": hardware() | _gpu(),
        "threads": threads(),
    }


def threads() -> int:
    """Threads one run may use."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch else int(os.environ.get("OMP_NUM_THREADS") or 1)


def limit_threads(count: int = 1) -> None:
    """One thread per process for every numerical library; call it before they are imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        os.environ[name] = str(count)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


@contextlib.contextmanager
def seeded(seed: int, *, fork: bool = False) -> Iterator[None]:
    """Seed every global source of randomness, and undo what an earlier run has changed in torch's defaults.

    Libraries that are imported inside get the seed as they are. With ``fork``, give the old states back after.
    """
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    saved = (
        random.getstate(),
        numpy.random.get_state() if numpy and fork else None,
        (torch.get_rng_state(), torch.get_default_dtype(), torch.is_grad_enabled())
        if torch and fork
        else None,
    )
    random.seed(seed)
    for name in ("numpy", "torch"):
        if name in sys.modules:
            _seed(sys.modules[name], seed)
    seeder = _Seeder(seed)
    sys.meta_path.insert(0, seeder)
    try:
        yield
    finally:
        sys.meta_path.remove(seeder)
        if fork:
            random.setstate(saved[0])
            if numpy:
                numpy.random.set_state(saved[1])
            if torch and saved[2]:
                torch.set_rng_state(saved[2][0])
                torch.set_default_dtype(saved[2][1])
                torch.set_grad_enabled(saved[2][2])


def _seed(library: Any, seed: int) -> None:
    if library.__name__ == "numpy":
        library.random.seed(seed % 2**32)
    else:
        library.manual_seed(seed)
        library.set_default_dtype(library.float32)
        library.set_grad_enabled(True)
        library.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or library.get_num_threads()))


class _Seeder(importlib.abc.MetaPathFinder):
    """Seeds numpy and torch when they are first imported inside a run."""

    def __init__(self, seed: int):
        self.seed = seed
        self._looking = False

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The library's own spec, with the seeding after its module has run."""
        if name not in ("numpy", "torch") or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_seed(module: Any) -> None:
                load(module)
                _seed(module, self.seed)

            spec.loader.exec_module = load_and_seed  # type: ignore[method-assign]
        return spec


class Meter:
    """Context that measures wall, CPU and GPU seconds and peak memory of what runs inside."""

    def __enter__(self) -> Meter:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text(
                "5"
            )  # resets the kernel's high-water mark of this process
        torch = sys.modules.get("torch")
        self._gpu = bool(torch and torch.cuda.is_initialized())
        if self._gpu and torch:
            torch.cuda.reset_peak_memory_stats()
        self._wall, self._cpu = time.perf_counter(), _cpu_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        wall = time.perf_counter() - self._wall
        torch = sys.modules.get("torch")
        gpu = bool(torch and torch.cuda.is_initialized())
        self.cost: dict[str, Any] = {
            "wall_seconds": round(wall, 4),
            "cpu_seconds": round(_cpu_seconds() - self._cpu, 4),
            "gpu_seconds": round(wall, 4) if gpu else 0.0,
            "peak_memory_mb": round(_peak_mb(), 1),
        }
        if gpu and torch:
            self.cost["peak_gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)


def _cpu_seconds() -> float:
    """CPU time of this process and of the children that it has waited for (sandboxes, data loaders)."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _peak_mb() -> float:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
