"""One run: how it ends, what it leaves, when the store answers instead."""

import json
from pathlib import Path
from typing import Any

import pytest

from runners import yamls
from runners.compose import compose_run
from runners.execute import Executor, Outcome
from runners.store import read_lines


def config(*leaves: tuple[str, Any], method: Any = "toy/descent", task: str = "toy/bowl") -> dict[str, Any]:
    """A small run."""
    steps = [("task.steps", 3)] if task == "toy/bowl" else []
    return compose_run(method, task, lambda _: [(path, value, "") for path, value in (*steps, *leaves)])


@pytest.fixture
def executor(outputs: Path) -> Executor:
    """An executor on the test's store."""
    return Executor(outputs, progress=False)


def failure(executor: Executor, wanted: dict[str, Any]) -> dict[str, Any]:
    """What a run that did not end well has left."""
    folder = executor.store.folder(wanted)
    assert not (folder / "result.json").exists()
    return dict(json.loads((folder / "failure.json").read_bytes()))


def test_done(executor: Executor) -> None:
    outcome = executor.run(config())
    assert (outcome.status, outcome.cached, outcome.error) == ("done", False, "")
    folder = executor.store.folder(config())
    assert yamls.load(folder / "config.yaml") == config()
    assert [line["step"] for line in read_lines(folder / "metrics.jsonl")] == [0, 1, 2]


def test_a_run_in_the_store_is_not_made_again(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    executor.run(config())
    monkeypatch.setattr(Executor, "examine", lambda *_, **__: pytest.fail("made again"))
    assert executor.run(config()).cached
    with pytest.raises(pytest.fail.Exception):
        executor.run(config(), again=True)


def test_a_stale_run_is_made_again_unless_kept(executor: Executor, outputs: Path) -> None:
    executor.run(config(), fingerprint="older")
    folder = executor.store.folder(config())
    assert json.loads((folder / "result.json").read_bytes())["fingerprint"] == ""  # not the code that ran
    keeper = Executor(outputs, stale="keep", progress=False)
    assert keeper.run(config()).cached
    assert not executor.run(config()).cached
    assert executor.run(config()).cached


@pytest.mark.parametrize(
    ("how", "said"), [("nan", "step 0: gap is not finite"), ("overflow", "the slope is not finite")]
)
def test_not_a_number_is_a_result(executor: Executor, how: str, said: str) -> None:
    wanted = config(("method.how", how), method="toy/bad")
    outcome = executor.run(wanted)
    assert (outcome.status, outcome.error) == ("diverged", said)
    result = json.loads((executor.store.folder(wanted) / "result.json").read_bytes())
    assert (result["status"], result["summary"]) == ("diverged", {})
    assert executor.run(wanted).cached


@pytest.mark.parametrize(
    ("how", "said"),
    [("raise", "ArithmeticError: this method cannot add"), ("exit", "SystemExit: 0")],
)
def test_an_error_leaves_its_traceback(executor: Executor, how: str, said: str) -> None:
    wanted = config(("method.how", how), method="toy/bad")
    outcome = executor.run(wanted)
    assert (outcome.status, outcome.error) == ("failed", said)
    left = failure(executor, wanted)
    assert (left["status"], left["error"]) == ("failed", said)
    assert "in move" in left["traceback"]
    assert "reprise_toy" in left["traceback"]
    assert not executor.run(wanted).cached  # a failure is no result: it is tried again
    assert executor.run(config()).status == "done"


def test_time_runs_out_where_the_task_looks(executor: Executor) -> None:
    wanted = config(("task.pause", 0.02), ("task.steps", 500), ("task.resources.hours", 0.1 / 3600))
    outcome = executor.run(wanted)
    assert outcome.status == "timeout"
    assert "out of time after" in outcome.error
    assert outcome.seconds < 5
    assert failure(executor, wanted)["status"] == "timeout"


def test_a_later_success_clears_the_failure(executor: Executor) -> None:
    executor.store.record_failure(config(), executor.store.folder(config()).name, "failed", "earlier")
    executor.run(config())
    assert not (executor.store.folder(config()) / "failure.json").exists()


def test_another_process_s_run_is_left_to_it(executor: Executor, outputs: Path) -> None:
    other = Executor(outputs, progress=False)
    folder = executor.store.folder(config())
    folder.mkdir(parents=True)
    with other.claims.claim(folder):
        assert executor.run(config()).status == "busy"
    assert executor.run(config()).status == "done"


def test_half_written_files_of_killed_attempts_go(executor: Executor) -> None:
    folder = executor.store.folder(config())
    folder.mkdir(parents=True)
    for name in (".result.json.123", ".checkpoint.pt", "metrics.jsonl", "stop"):
        (folder / name).write_text("half")
    assert executor.run(config()).status == "done"
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "metrics.jsonl", "result.json"]


def test_a_run_that_needs_another_gets_it(executor: Executor, outputs: Path) -> None:
    opponent = config(method="toy/sign")
    executor.run(opponent)
    folder = executor.store.folder(opponent)
    node = {"_run_": folder.name, "folder": str(folder.relative_to(outputs)), "_name_": "toy/sign"}
    wanted = config(("task.opponent", node), task="toy/duel")
    assert executor.run(wanted).status == "done"
    result = json.loads((executor.store.folder(wanted) / "result.json").read_bytes())
    gap = json.loads((folder / "result.json").read_bytes())["summary"]["gap"]
    assert result["summary"]["margin"] == gap - result["summary"]["gap"]
    (folder / "result.json").unlink()
    outcome = executor.run(wanted, again=True)
    assert outcome.status == "failed"
    assert outcome.error == f"needs the run toy/sign ({folder.name}), which has no result"


def test_a_mistake_of_the_config_is_said_as_such(executor: Executor) -> None:
    wanted = config()
    wanted["method"]["lrr"] = 1
    outcome = executor.run(wanted)
    assert (outcome.status, outcome.error) == (
        "failed",
        "method.lrr: Descent takes no argument 'lrr'; nearest: lr",
    )


def test_missing_data_names_the_command_of_the_paper(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reprise_toy.tasks import Bowl

    from tasks.data.resolve import MissingData

    def evaluate(*_: Any) -> None:
        raise MissingData("words is missing; run: make fetch-<paper>")

    monkeypatch.setattr(Bowl, "evaluate", evaluate)
    outcome = executor.run(config(), labels={"paper": "toy"})
    assert outcome.error.endswith("run: make fetch-toy")


def test_code_that_was_edited_meanwhile_leaves_no_fingerprint(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    fingerprint = executor.code.of(config())
    monkeypatch.setattr(executor.code, "unchanged", lambda _: False)
    assert executor.run(config(), fingerprint=fingerprint).status == "done"
    assert json.loads((executor.store.folder(config()) / "result.json").read_bytes())["fingerprint"] == ""
    assert not Executor(executor.root, progress=False).run(config()).cached


def test_an_outcome_crosses_a_process_boundary() -> None:
    outcome = Outcome("x", "failed", 1.5, error="e")
    assert Outcome(**json.loads(json.dumps(outcome.as_dict()))) == outcome


def test_a_tracker_hears_everything(outputs: Path, tmp_path: Path) -> None:
    log = tmp_path / "tracker.log"
    tracker = {"_target_": "tests.runners.test_execute.Tracker", "log_file": str(log)}
    executor = Executor(outputs, tracker=tracker, progress=False)
    executor.run(config(), labels={"paper": "toy"})
    assert log.read_text().splitlines() == ["start toy", "0", "1", "2", "done gap"]


class Tracker:
    """A tracker that writes down what it is told."""

    def __init__(self, config: Any, run_id: str, labels: Any, folder: Path, log_file: str, **_: Any):
        self.path = Path(log_file)
        self._say(f"start {labels['paper']}")

    def _say(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text + "\n")

    def log(self, line: dict[str, Any]) -> None:
        """A line of metrics."""
        self._say(str(line["step"]))

    def finish(self, status: str, summary: dict[str, Any], *_: Any, **__: Any) -> None:
        """The end."""
        self._say(f"{status} {' '.join(summary)}")


def test_threads_are_one(executor: Executor, outputs: Path) -> None:
    executor.run(config())
    result = json.loads((executor.store.folder(config()) / "result.json").read_bytes())
    assert result["provenance"]["threads"] == 1


@pytest.mark.parametrize("order", [("leak", "plain"), ("plain", "leak")])
def test_nothing_passes_from_one_run_to_the_next(order: tuple[str, str], tmp_path: Path) -> None:
    found = {}
    executor = Executor(tmp_path / "-".join(order), progress=False)
    leaves = (("task.use_global", True), ("task.replicates", 1))
    for how in order:
        wanted = config(("method.how", how), *leaves, method="toy/bad", task="toy/draws")
        assert executor.run(wanted).status == "done"
        found[how] = json.loads((executor.store.folder(wanted) / "result.json").read_bytes())["summary"]
    first = {"torch": 0.4963, "numpy": 0.5488, "python": 0.8444}  # what seed 0 gives in each library
    assert {key: round(found["plain"][key], 4) for key in first} == first
    assert (found["plain"]["bits"], found["plain"]["grad"]) == ("torch.float32", True)
