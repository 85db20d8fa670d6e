"""A sweep: waves of experiments, frozen configs, resume, failures that stay where they are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners import reproduce
from runners.errors import ConfigError
from runners.expand import Overrides
from runners.paper import Paper
from tests.runners.conftest import numbers

Make = Callable[..., Any]

SMALL = """
title: Small
experiments:
  one:
    grid: {method: [toy/descent, toy/sign], task: toy/bowl, seed: range(4), task.steps: 3}
"""


@pytest.fixture
def paper(conf: Callable[[str, str], Path]) -> Callable[[str], str]:
    """``paper(experiments)`` writes a paper with these experiments; returns its name."""

    def write(experiments: str) -> str:
        indented = "\n".join(f"  {line}" for line in experiments.strip("\n").splitlines())
        conf("paper/made.yaml", f"title: Made\nexperiments:\n{indented}\n")
        return "made"

    return write


def test_everything_a_paper_can_ask_for(sweep: Make, outputs: Path) -> None:
    made = sweep("toy")
    made.run()
    assert not made.failures
    counts = {name: len(cells) for name, cells in made.cells.items()}
    assert counts == {"bowl": 16, "tuned": 12, "transfer": 24, "second_round": 6, "race": 1, "prepared": 5}
    assert made.skipped == {"huge": "needs a cluster for a week"}
    assert (outputs / "artifacts" / "tasks.build_table" / "built.log").read_text() == "5\n"
    assert all(record["status"] == "done" for name in made.cells for record in made.records(name))
    margins = {result["summary"]["margin"] for result in map(made.results.get, ids(made, "transfer"))}
    assert len(margins) > 12
    for cell in made.cells["second_round"]:
        opponent = made.results[cell.config["task"]["opponent"]["_run_"]]
        assert opponent["config"]["task"]["opponent"]["_name_"] == "toy/descent"
        assert opponent["config"]["seed"] == cell.config["seed"]
    chosen = [row for row in made.tables["tuned"] if row["chosen"]]
    assert {cell.config["method"]["lr"] for cell in made.cells["tuned"]} == {
        row["method.lr"] for row in chosen
    }
    assert made.provenance()["cpu_seconds"] >= 0


def ids(made: Any, name: str) -> list[str]:
    """Ids of an experiment's cells."""
    return [cell.id for cell in made.cells[name]]


def test_a_second_sweep_finds_everything(sweep: Make, log: Any, paper: Any, conf: Any) -> None:
    conf("paper/small.yaml", SMALL)
    sweep("small").run()
    assert len(log()) == 16
    again = sweep("small")
    again.run()
    assert len(log()) == 16
    assert len(again.results) == 8
    assert numbers(again.root).keys() == again.results.keys()


def test_half_a_sweep_is_finished_by_another_command(
    sweep: Make, log: Any, conf: Any, command: Callable[..., Any]
) -> None:
    conf("paper/small.yaml", SMALL)
    for method in ("descent", "sign"):
        assert (
            command("runners.run", f"method=toy/{method}", "task=toy/bowl", "task.steps=3", "seed=2").code
            == 0
        )
    assert len(log()) == 4
    made = sweep("small")
    made.run()
    assert sorted(run for word, run, _ in log() if word == "end") == sorted(made.results)


def test_an_experiment_brings_those_it_needs(sweep: Make) -> None:
    made = sweep("toy", experiments=["second_round"])
    assert made.order == ["bowl", "transfer", "second_round"]
    assert made.skipped["race"] == "not asked for"


def test_what_needs_a_skipped_experiment_is_skipped(sweep: Make, paper: Any) -> None:
    name = paper("""
a: {grid: {method: toy/descent, task: toy/bowl}, scale: {smoke: {not_run: too dear}}}
b: {grid: {method: toy/descent, task: toy/duel}, needs: {opponent: {experiment: a, seed: same}}}
c: {grid: {method: toy/descent, task: toy/bowl}, scales: [paper]}
d: {grid: {method: toy/descent, task: toy/bowl}}
""")
    made = sweep(name)
    assert made.order == ["d"]
    assert made.skipped == {"a": "too dear", "b": "needs a: too dear", "c": "runs at scale paper only"}


def test_a_choice_of_cells_leaves_out_what_has_none(sweep: Make) -> None:
    made = sweep("toy", overrides=Overrides(only={"method": ["toy/sign"]}))
    assert set(made.order) == {"tuned", "bowl", "race", "transfer"}
    assert made.skipped["prepared"] == "no cell with these choices"
    made.run()
    assert {result["config"]["task"]["_name_"] for result in made.results.values()} >= {
        "toy/bowl",
        "toy/duel",
    }


def test_configs_are_frozen_before_the_first_run(
    sweep: Make, conf: Callable[[str, str], Path], outputs: Path
) -> None:
    conf("paper/small.yaml", SMALL)
    made = sweep("small")
    expected = sweep("small").planned["one"]
    conf("paper/small.yaml", SMALL.replace("task.steps: 3", "task.steps: 9").replace("range(4)", "range(9)"))
    conf(
        "task/toy/bowl.yaml", "_target_: reprise_toy.tasks.Bowl\nsteps: 7\n"
    )  # ours comes first, but it is read
    made.run()
    frozen = json.loads((outputs / "report" / "small" / "smoke" / "frozen" / "one.json").read_text())
    assert [cell["id"] for cell in frozen["cells"]] == [cell.id for cell in expected]
    assert {cell["config"]["task"]["steps"] for cell in frozen["cells"]} == {3}
    assert set(made.results) == {cell.id for cell in expected}


def test_changed_experiments_are_frozen_apart(sweep: Make, conf: Any, outputs: Path) -> None:
    conf("paper/small.yaml", SMALL)
    sweep("small").run()
    before = (outputs / "report" / "small" / "smoke" / "frozen" / "one.json").read_bytes()
    sweep("small", overrides=Overrides(leaves=[("method.lr", 0.7, "")])).run()
    assert (outputs / "report" / "small" / "smoke" / "frozen" / "one.json").read_bytes() == before
    assert (outputs / "report" / "small" / "smoke-modified" / "frozen" / "one.json").exists()


FAILING = """
first:
  grid: {method: [toy/descent, toy/bad], task: toy/bowl, seed: range(3), task.steps: 3}
  settings: [{when: {method: toy/bad}, set: {method.how: %s}, source: assumed}]
duel:
  grid: {method: toy/descent, task: toy/duel, seed: range(3)}
  needs: {opponent: {experiment: first, method: "*", seed: same}}
"""


@pytest.mark.parametrize(("how", "status"), [("raise", "failed"), ("die", "failed"), ("nan", "diverged")])
def test_one_bad_run_never_stops_a_sweep(sweep: Make, paper: Any, how: str, status: str) -> None:
    made = sweep(paper(FAILING % how))
    made.run()
    found = {(record["config"]["method"]["_name_"], record["status"]) for record in made.records("first")}
    assert found == {("toy/descent", "done"), ("toy/bad", status)}
    duels = [record["status"] for record in made.records("duel")]
    assert (duels.count("done"), duels.count("failed")) == (3, 3)
    assert len(made.failures) == (3 if status == "diverged" else 6)
    if status == "failed":
        assert any("needs the run toy/bad" in line and "has no result" in line for line in made.failures)


def test_a_failure_is_tried_again_next_time(sweep: Make, paper: Any, log: Any) -> None:
    name = paper("first: {grid: {method: toy/bad, task: toy/bowl, seed: range(2)}}")
    for times in (1, 2):
        made = sweep(name)
        made.run()
        assert len(made.failures) == 2
        assert len(log()) == 2 * times


def test_stopping_at_the_first_failure_stops_later_stages_too(sweep: Make, paper: Any) -> None:
    made = sweep(paper(FAILING % "raise"), fail_fast=True)
    made.run()
    assert made.failures
    assert made.skipped["duel"] == "stopped at the first failure"
    assert "duel" not in made.cells


def test_tuning_counts_what_never_happened(sweep: Make, paper: Any) -> None:
    """A candidate that fails is the worst; one that never gets there counts as `censored`."""
    name = paper("""
one:
  grid: {method: toy/bad, task: toy/bowl, task.steps: 3}
  settings: [{set: {method.lr: 0.2}, source: assumed}]
  tune: {grid: {method.how: [nan, raise, none]}, metric: gap, seeds: [100, 101]}
""")
    made = sweep(name)
    made.run()
    table = {row["method.how"]: row for row in made.tables["one"]}
    assert table["none"]["chosen"]
    assert table["nan"]["score"] == table["raise"]["score"] == float("inf")
    assert len(made.failures) == 2


def test_a_tuning_metric_that_does_not_exist(sweep: Make, paper: Any) -> None:
    made = sweep(
        paper("""
one:
  grid: {method: toy/descent, task: toy/bowl, task.steps: 3}
  tune: {grid: {method.lr: [0.1]}, metric: gapp, seeds: [100]}
""")
    )
    with pytest.raises(ConfigError, match=r"tune.metric 'gapp' is not in the summary \(gap\); nearest: gap"):
        made.run()


def test_problems_of_the_store_are_said_once(
    sweep: Make, conf: Any, capsys: pytest.CaptureFixture[str], outputs: Path
) -> None:
    conf("paper/small.yaml", SMALL)
    sweep("small").run()
    before = numbers(outputs)
    folders = [path.parent for path in sorted(outputs.glob("*/*/*/*/result.json"))]
    (folders[0] / "result.json").write_text("")
    (folders[1] / "metrics.jsonl").write_text("{")
    (folders[2] / "result.json").write_text('{"status": "done"}')
    capsys.readouterr()
    sweep("small").run()
    said = capsys.readouterr().err
    for folder in folders[:3]:
        assert said.count(str(folder)) == 1
    assert said.count("run again") == 3
    assert numbers(outputs) == before


def test_the_estimate_speaks_of_runs_and_hours(sweep: Make) -> None:
    made = sweep("toy", "laptop")
    text = made.estimate()
    assert "bowl: 16 runs; at most 16 core-hours" in text
    assert "transfer (follows bowl): " in text
    assert "huge: not run (needs a cluster for a week)" in text


def test_the_check_is_told_apart_from_the_run(outputs: Path, sweep: Make) -> None:
    sweep("toy")
    assert not outputs.exists()


def test_options_of_the_command_reach_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class Fake:
        def __init__(self, paper: Paper, scale: str, **options: Any):
            seen.update(options, paper=paper.slug, scale=scale)

        def check(self) -> None:
            raise ConfigError("enough")

    monkeypatch.setattr("runners.sweep.Sweep", Fake)
    with pytest.raises(ConfigError, match="enough"):
        reproduce.run(
            [
                *(
                    "paper=toy",
                    "scale=paper",
                    "seeds=2",
                    "experiment=bowl,race",
                    "method=toy/s*",
                    "+method.x=1",
                ),
                *("launcher.workers=3", "stale=keep", "fail_fast=true", "task.steps=5", "device=cuda"),
            ]
        )
    assert (seen["paper"], seen["scale"], seen["experiments"]) == ("toy", "paper", ["bowl", "race"])
    assert (seen["stale"], seen["fail_fast"], seen["launcher"]["workers"]) == ("keep", True, 3)
    overrides = seen["overrides"]
    assert overrides.seeds == [0, 1]
    assert overrides.only == {"method": ["toy/s*"]}
    assert [(path, value) for path, value, _ in overrides.leaves] == [
        ("+method.x", 1),
        ("task.steps", 5),
        ("device", "cuda"),
    ]


def test_runs_without_artifacts_do_not_wait_for_them(
    sweep: Make, paper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiments = """
plain: {grid: {method: toy/descent, task: toy/bowl, seed: range(2)}}
prepared: {grid: {method: toy/descent, task: toy/prepared, seed: range(2)}}
"""
    made = sweep(paper(experiments))
    launched: list[list[str]] = []
    make = made._make_launcher

    def noting() -> Any:
        launcher = make()
        launch = launcher.launch

        def note(jobs: Any, *others: Any) -> Any:
            launched.append([job.label.split()[0] for job in jobs])
            return launch(jobs, *others)

        launcher.launch = note
        return launcher

    monkeypatch.setattr(made, "_make_launcher", noting)
    made.run()
    assert [calls for calls in launched if calls] == [
        ["artifact", "plain:", "plain:"],
        ["prepared:", "prepared:"],
    ]
    assert len(made.results) == 4
