"""``python -m runners.reproduce``: verdicts, report, publication, exit codes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from runners import places
from tests.runners.conftest import numbers

Command = Callable[..., SimpleNamespace]
TOY = ("runners.reproduce", "paper=toy", "scale=smoke")

SMALL = """
title: Small
experiments:
  one:
    grid: {{method: [toy/descent, {other}], task: toy/bowl, seed: range(6), task.steps: 5}}
claims:
  lower:
    says: Lower
    source: Fig. 1
    experiment: one
    statistic: {{ratio: {{metric: gap, of: {other}, to: toy/descent}}}}
    expect: ">= 0"
    set_by: ours
    scales: [smoke]
figures:
  gap: {{experiment: one, x: step, y: gap, lines: method}}
"""


@pytest.fixture
def small(conf: Callable[[str, str], Path]) -> Callable[..., tuple[str, ...]]:
    """``small(other method)`` writes a small paper; returns the command that reproduces it."""

    def write(other: str = "toy/sign") -> tuple[str, ...]:
        conf("paper/small.yaml", SMALL.format(other=other))
        return ("runners.reproduce", "paper=small", "scale=smoke")

    return write


def verdicts(folder: Path) -> dict[str, str]:
    """Verdict of every claim and finding in a report."""
    found = json.loads((folder / "verdicts.json").read_text())
    return {entry["id"]: entry["verdict"] for entry in found["claims"] + found["findings"]}


def test_the_toy_paper(command: Command, outputs: Path) -> None:
    ended = command(*TOY, "publish=true")
    assert ended.code == 0, ended.err
    report = outputs / "report" / "toy" / "smoke"
    assert verdicts(report) == {
        "lower_gap": "reproduced",
        "falls": "reproduced",
        "race_ahead": "reproduced",
        "at_scale": "not run",
        "tuned_apart": "reproduced",
    }
    for name in ("lower_gap", "reproduced", "not run", "too small to mean anything"):
        assert name in ended.out
    published = places.results() / "toy" / "smoke"
    names = {path.relative_to(published).as_posix() for path in published.rglob("*") if path.is_file()}
    assert names == {"verdicts.json", "README.md", "runs.csv", "curves.csv", "tuning.csv", "figures/gap.svg"}
    assert sum(path.stat().st_size for path in published.rglob("*")) < 2**20
    before = {path.name: path.read_bytes() for path in published.rglob("*") if path.is_file()}
    again = command(*TOY, "publish=true")
    assert again.code == 0, again.err
    for name in ("runs.csv", "curves.csv", "tuning.csv", "gap.svg"):
        assert next(published.rglob(name)).read_bytes() == before[name], name


def test_overrides_judge_nothing_and_are_kept_apart(
    command: Command, small: Callable[..., tuple[str, ...]]
) -> None:
    reproduce = small()
    assert command(*reproduce).code == 0
    report = places.outputs() / "report" / "small" / "smoke"
    before = (report / "verdicts.json").read_bytes()
    for change in ("method.lr=0.2", "method=toy/*", "dtype=float64"):
        ended = command(*reproduce, change)
        assert ended.code == 0, ended.err
        changed = report.with_name("smoke-modified")
        assert verdicts(changed) == {"lower": "shown"}
        assert json.loads((changed / "verdicts.json").read_text())["modified"]
    assert (report / "verdicts.json").read_bytes() == before


def test_more_seeds_are_the_paper_s_own_experiment(
    command: Command, small: Callable[..., tuple[str, ...]]
) -> None:
    assert command(*small(), "seeds=8").code == 0
    found = json.loads((places.outputs() / "report" / "small" / "smoke" / "verdicts.json").read_text())
    assert (found["modified"], found["claims"][0]["units"], found["claims"][0]["verdict"]) == (
        False,
        8,
        "reproduced",
    )


def test_too_few_units_are_never_conclusive(command: Command, small: Callable[..., tuple[str, ...]]) -> None:
    assert command(*small(), "seeds=4").code == 0
    assert verdicts(places.outputs() / "report" / "small" / "smoke") == {"lower": "inconclusive"}


def test_failed_runs_show_in_the_table_the_page_and_the_exit_code(
    command: Command, small: Callable[..., tuple[str, ...]], outputs: Path
) -> None:
    ended = command(*small("toy/bad"))
    assert ended.code == 1
    assert "6 runs failed:" in ended.err
    assert ended.err.count("ArithmeticError: this method cannot add") == 12  # as they happen, and at the end
    report = outputs / "report" / "small" / "smoke"
    assert verdicts(report) == {"lower": "inconclusive"}
    experiment = json.loads((report / "verdicts.json").read_text())["experiments"]["one"]
    assert experiment["statuses"] == {"done": 6, "failed": 6}
    assert "Traceback" not in ended.err
    trace = json.loads(next(outputs.glob("toy/bad/bowl/*/failure.json")).read_text())["traceback"]
    assert "cannot add" in trace


def test_stopping_at_the_first_failure(command: Command, small: Callable[..., tuple[str, ...]]) -> None:
    ended = command(*small("toy/bad"), "fail_fast=true", "launcher.workers=1")
    assert ended.code == 1
    assert ended.err.count("ArithmeticError") < 8


def test_a_chosen_experiment_leaves_the_other_claims_open(command: Command, outputs: Path) -> None:
    ended = command(*TOY, "experiment=race")
    assert ended.code == 0, ended.err
    found = verdicts(outputs / "report" / "toy" / "smoke")
    assert (found["race_ahead"], found["lower_gap"]) == ("reproduced", "not run")
    assert len(numbers(outputs)) == 1


def test_a_dry_run_runs_nothing(command: Command, outputs: Path) -> None:
    ended = command(*TOY, "dry_run=true")
    assert ended.code == 0
    assert "bowl: 16 runs" in ended.err
    assert not numbers(outputs)


def test_results_of_older_code_can_be_kept(
    command: Command, small: Callable[..., tuple[str, ...]], outputs: Path
) -> None:
    command(*small())
    for path in outputs.glob("*/*/*/*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"fingerprint": "older"}))
    ended = command(*small(), "stale=keep")
    assert ended.code == 0, ended.err
    report = outputs / "report" / "small" / "smoke"
    assert json.loads((report / "verdicts.json").read_text())["claims"][0]["stale"]
    assert "12 stored" in ended.err
    ended = command(*small())
    assert "stored" not in ended.err
    assert "stale" not in json.loads((report / "verdicts.json").read_text())["claims"][0]


def test_too_much_to_publish_is_not_published(
    command: Command, small: Callable[..., tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runners import judge

    write = judge.write

    def large(sweep: object, folder: Path) -> object:
        found = write(sweep, folder)  # type: ignore[arg-type]
        (folder / "large.csv").write_text("x" * 2**20)
        return found

    monkeypatch.setattr(judge, "write", large)
    ended = command(*small(), "publish=true")
    assert ended.code == 2
    assert re.search(r"error: 1\.\d MB to publish, more than 1 MB", ended.err)
    assert not (places.results() / "small").exists() or not list((places.results() / "small").iterdir())


def test_tables_of_an_earlier_report_do_not_stay(
    command: Command, small: Callable[..., tuple[str, ...]], conf: Callable[[str, str], Path], outputs: Path
) -> None:
    command(*small())
    report = outputs / "report" / "small" / "smoke"
    (report / "tuning.csv").write_text("old")
    conf("paper/small.yaml", SMALL.format(other="toy/sign").partition("figures:")[0])
    assert command("runners.reproduce", "paper=small", "scale=smoke").code == 0
    assert not (report / "tuning.csv").exists()
    assert not (report / "curves.csv").exists()
    assert not list((report / "figures").glob("*.svg"))


def test_plain_lines_where_there_is_no_terminal(
    command: Command, small: Callable[..., tuple[str, ...]]
) -> None:
    ended = command(*small())
    assert re.fullmatch(r"\[small smoke \d+:\d\d, left 0:00\] one 12/12", ended.err.strip())
    again = command(*small())
    assert "one 12/12, 12 stored" in again.err


def test_the_published_verdicts_stand_beside(command: Command, small: Callable[..., tuple[str, ...]]) -> None:
    command(*small(), "publish=true")
    path = places.results() / "small" / "smoke" / "verdicts.json"
    path.write_text(path.read_text().replace('"reproduced"', '"contradicted"'))
    ended = command(*small())
    line = next(line for line in ended.out.splitlines() if "lower" in line)
    assert line.index("reproduced") < line.index("contradicted")
