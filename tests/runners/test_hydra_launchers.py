"""Hydra's own launcher plug-ins run the same runs into the same store."""

from pathlib import Path
from typing import Any

import pytest

from runners.store import Store
from tests.runners.conftest import numbers

SWEEP = ("-m", "method=toy/descent,toy/sign", "task=toy/bowl", "seed=range(2)")
ENDS = ("-m", "method=toy/bad", "task=toy/bowl")  # anything but raise is well


def check_shared(process: Any, store: Store, *launcher: str) -> None:
    """A sweep through one of Hydra's launchers finds what Hydra's basic one has done, and the other way round."""
    first = process("runners.run", *SWEEP[:2], "task=toy/bowl", "seed=0")
    assert first.code == 0, first.err
    before = numbers(store.root)
    assert len(before) == 2
    swept = process("runners.run", *SWEEP, *launcher)
    assert swept.code == 0, swept.err
    found = numbers(store.root)
    assert len(found) == 4
    assert before.items() <= found.items()
    stamps = {path: path.stat().st_mtime_ns for path in store.root.glob("toy/*/*/*/result.json")}
    again = process("runners.run", *SWEEP)
    assert again.code == 0, again.err
    assert again.out.count("done (stored)") == 4
    assert stamps == {path: path.stat().st_mtime_ns for path in store.root.glob("toy/*/*/*/result.json")}


def check_failures(process: Any, store: Store, *launcher: str) -> None:
    """A job that fails is a non-zero exit code."""
    ran = process("runners.run", *ENDS, *launcher)
    assert ran.code == 1, ran.err
    assert [result["status"] for result in store.results()] == ["done"]
    failures = list(store.root.glob("toy/bad/bowl/*/failure.json"))
    assert len(failures) == 1
    assert "this method cannot add" in failures[0].read_text()


@pytest.mark.slow
def test_joblib(process: Any, store: Store) -> None:
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    check_shared(process, store, *launcher)


@pytest.mark.slow
def test_joblib_failures(process: Any, store: Store) -> None:
    check_failures(
        process, store, "method.how=raise,well", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"
    )


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.exclusive
def test_submitit_slurm(process: Any, store: Store, slurm: None, tmp_path: Path) -> None:
    launcher = ("hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=5")
    check_shared(process, store, *launcher)


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.exclusive
def test_submitit_slurm_failures(process: Any, store: Store, slurm: None) -> None:
    launcher = ("hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=5")
    check_failures(process, store, "method.how=raise,well", *launcher)
