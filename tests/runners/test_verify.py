"""``python -m runners.verify``: equal numbers renew fingerprints, other numbers stay stale."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runners.conftest import numbers

PAPER = """
title: Checked
experiments:
  one:
    grid: {method: [toy/descent, toy/sign], task: toy/bowl, seed: range(3), task.steps: 3}
  duel:
    grid: {method: toy/sign, task: toy/duel, seed: range(3)}
    needs: {opponent: {experiment: one, method: toy/descent, seed: same}}
  race: {grid: {method: [[toy/descent, toy/sign]], task: toy/race}}
  prepared: {grid: {method: toy/descent, task: toy/prepared, seed: range(2)}}
"""
VERIFY = ("runners.verify", "paper=checked", "scale=smoke")


@pytest.fixture
def stored(conf: Callable[[str, str], Path], sweep: Callable[..., Any], outputs: Path) -> Path:
    """A finished sweep."""
    conf("paper/checked.yaml", PAPER)
    made = sweep("checked")
    made.run()
    assert not made.failures
    return outputs


def change(outputs: Path, pattern: str, **entries: Any) -> int:
    """Change entries of stored results; returns how many."""
    paths = list(outputs.glob(f"{pattern}/result.json"))
    for path in paths:
        path.write_text(json.dumps(json.loads(path.read_bytes()) | entries))
    return len(paths)


def fingerprints(outputs: Path) -> dict[str, str]:
    """Fingerprint of every stored result."""
    return {
        p.parent.name: json.loads(p.read_bytes())["fingerprint"] for p in outputs.glob("*/*/*/*/result.json")
    }


def test_one_seed_per_cell_runs_again(
    stored: Path, command: Callable[..., SimpleNamespace], log: Any
) -> None:
    before = {path: path.read_bytes() for path in stored.rglob("*.json*")}
    ended = command(*VERIFY)
    assert ended.code == 0, ended.err
    lines = sorted(line.partition(" {")[0] for line in ended.out.splitlines())
    assert lines == [
        "equal: duel",
        "equal: one",
        "equal: one",
        "equal: prepared",
        "timed, so it runs again: race",
    ]
    assert len(log()) == 4  # two cells of toy/bowl, begun and ended once each
    assert {path: path.read_bytes() for path in stored.rglob("*.json*")} == before


def test_equal_numbers_renew_every_seed_s_fingerprint(
    stored: Path, command: Callable[..., SimpleNamespace]
) -> None:
    before, results = fingerprints(stored), numbers(stored)
    changed = sum(
        change(stored, f"toy/*/{task}/*", fingerprint="older") for task in ("bowl", "duel", "prepared")
    )
    ended = command(*VERIFY)
    assert ended.code == 0, ended.err
    assert ended.out.count("fingerprints renewed") == 4
    assert fingerprints(stored) == before
    assert numbers(stored) == results
    assert changed == 11
    again = command("runners.reproduce", "paper=checked", "scale=smoke")
    assert "one 6/6, 6 stored" in again.err
    assert "duel 3/3, 3 stored" in again.err


@pytest.mark.parametrize("what", ["summary", "metrics", "status"])
def test_other_numbers_are_reported_and_stay_stale(
    stored: Path, command: Callable[..., SimpleNamespace], what: str
) -> None:
    change(stored, "toy/sign/bowl/*", fingerprint="older")
    for path in stored.glob("toy/sign/bowl/*/result.json"):
        if what == "metrics":
            lines = path.with_name("metrics.jsonl")
            lines.write_text(lines.read_text().replace('"gap": 0', '"gap": 1'))
    if what != "metrics":
        change(stored, "toy/sign/bowl/*", **{what: {"summary": {"gap": 0.1}, "status": "diverged"}[what]})
    ended = command(*VERIFY)
    assert ended.code == 1
    assert ended.out.count("differs: one") == 1
    assert "3 cells equal, 1 different, 0 without a result: make reproduce-checked runs them" in ended.err
    stale = {path.parent.name for path in stored.glob("toy/sign/bowl/*/result.json")}
    assert {fingerprints(stored)[name] for name in stale} == {"older"}


def test_a_cell_without_a_result(stored: Path, command: Callable[..., SimpleNamespace]) -> None:
    for path in stored.glob("toy/sign/bowl/*/result.json"):
        path.unlink()
    ended = command(*VERIFY)
    assert ended.code == 1
    assert ended.out.count("no result: one") == 1


def test_nothing_of_it_stays_in_the_temporary_folder(
    stored: Path, command: Callable[..., SimpleNamespace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    command(*VERIFY)
    assert list(scratch.iterdir()) == []
