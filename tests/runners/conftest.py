"""Outputs and results of a test's own, the toy plug-in package, commands in this process and in others."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HOME = Path(__file__).resolve().parents[2]
PLUGIN = HOME / "tests" / "plugin"
# The package is found through its entry point, here and in every process that a test starts.
sys.path.insert(0, str(PLUGIN))
os.environ["PYTHONPATH"] = os.pathsep.join([str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])])

from runners import cli, compose, places  # noqa: E402
from runners.store import Store  # noqa: E402


def forget(*, options: bool = True) -> None:
    """Forget what is cached about configuration folders; ``options``: and about what methods and tasks say."""
    for cached in (places.conf_roots, places.options):
        cached.cache_clear()
    if options:
        compose._hydra.cache_clear()
        compose._base.cache_clear()


@pytest.fixture(autouse=True)
def _own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def outputs() -> Path:
    """The store's root."""
    return Path(os.environ["REPRISE_OUTPUTS"])


@pytest.fixture
def store(outputs: Path) -> Store:
    """The store."""
    return Store(outputs)


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """``conf("paper/x.yaml", text)`` writes into a configuration folder of the test's own."""
    root = tmp_path / "conf"
    root.mkdir()
    monkeypatch.setenv("REPRISE_CONF", str(root))
    forget(options=False)
    only_papers = True

    def write(name: str, text: str) -> Path:
        nonlocal only_papers
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        only_papers = only_papers and name.startswith("paper/")
        forget(options=not only_papers)
        return path

    yield write
    forget(options=not only_papers)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """``command("runners.run", "method=...", ...)`` runs a command in this process: code, out, err."""

    def run(module: str, *arguments: str) -> SimpleNamespace:
        from importlib import import_module

        loaded = import_module(module)
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main(loaded.run, loaded.USAGE, arguments)
        captured = capsys.readouterr()
        return SimpleNamespace(code=exit_.value.code, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start("runners.run", ...)`` starts a command in a process group of its own; it never outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def run(module: str, *arguments: str, env: dict[str, str] | None = None, **options: Any) -> Any:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=HOME,
            env=os.environ | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        kill_group(process)
        process.communicate()


def kill_group(process: "subprocess.Popen[str]") -> None:
    """``kill -9`` of a process and all it started (its session's processes)."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the machine had eight GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")


@pytest.fixture
def process(start: Callable[..., Any]) -> Callable[..., SimpleNamespace]:
    """``process("runners.run", ...)`` runs a command to its end in a process of its own: code, out, err."""

    def run(module: str, *arguments: str, **options: Any) -> SimpleNamespace:
        started = start(module, *arguments, **options)
        out, err = started.communicate(timeout=300)
        return SimpleNamespace(code=started.returncode, out=out, err=err)

    return run


@pytest.fixture
def plugin_copy(tmp_path: Path) -> SimpleNamespace:
    """A copy of the plug-in package that a test may edit: ``.root``, ``.env`` for processes that use it."""
    import shutil

    root = tmp_path / "plugin"
    shutil.copytree(PLUGIN, root, ignore=shutil.ignore_patterns("__pycache__"))
    env = {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    return SimpleNamespace(root=root, package=root / "reprise_toy", env=env)


@pytest.fixture
def fresh_workers() -> Iterator[None]:
    """The process that this test's workers are forked from starts in it, and ends with it."""
    from multiprocessing import forkserver

    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """What the toy tasks noted: [word, run, process] in order."""
    path = tmp_path / "toy.log"
    monkeypatch.setenv("REPRISE_TOY_LOG", str(path))
    return lambda: [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def sweep() -> Callable[..., Any]:
    """``sweep("toy", "smoke", ...)``: a checked sweep in this process, on two workers."""

    def make(slug: str, scale: str = "smoke", *, workers: int = 2, **options: Any) -> Any:
        from runners.paper import Paper
        from runners.sweep import Sweep

        launcher = {"_target_": "runners.launchers.local.Local", "workers": workers}
        made = Sweep(Paper(slug), scale, launcher=launcher, **options)
        made.check()
        return made

    return make


def numbers(root: Path) -> dict[str, tuple[Any, ...]]:
    """All that runs recorded, by id: status, summary, metrics and rows as bytes."""
    found = {}
    for path in sorted(root.glob("*/*/*/*/result.json")):
        result = json.loads(path.read_bytes())
        lines = [
            (path.parent / name).read_bytes() if (path.parent / name).exists() else b""
            for name in ("metrics.jsonl", "rows.jsonl")
        ]
        found[result["id"]] = (result["status"], result["summary"], *lines)
    return found


@pytest.fixture(scope="session")
def slurm() -> None:
    """Skip by name where no Slurm controller answers; where REPRISE_REQUIRE_DATA is set (as in CI), fail."""
    try:
        answer = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, timeout=60).stdout
        config = subprocess.run(
            ["scontrol", "show", "config"], capture_output=True, text=True, timeout=60
        ).stdout
        if "UP" in answer and not re.search(r"^ClusterName\s*=\s*reprise$", config, re.MULTILINE):
            answer = ""  # somebody's cluster: no place for tests
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    if "UP" not in answer:
        if os.environ.get("REPRISE_REQUIRE_DATA"):
            pytest.fail("Slurm absent: python scripts/slurm_up.py starts one", pytrace=False)
        pytest.skip("Slurm absent: python scripts/slurm_up.py starts one")
