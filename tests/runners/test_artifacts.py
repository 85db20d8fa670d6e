"""Artifacts: built once, shared, rebuilt when their arguments or code change, never served half-made."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runners import places
from runners.artifacts import ArtifactStore, nodes
from runners.build import Artifact
from runners.compose import compose_run
from runners.execute import Executor
from runners.places import HOME

NODE = {"_target_": "reprise_toy.tasks.build_table", "_artifact_": True, "size": 3, "seed": 0}


def get(store: ArtifactStore, **changes: Any) -> Path:
    """The artifact's folder."""
    return store.get(Artifact(NODE | changes))[0]


def built(outputs: Path) -> list[str]:
    """Sizes of the tables built so far, in order."""
    log = outputs / "artifacts" / "tasks.build_table" / "built.log"
    return log.read_text().split() if log.exists() else []


def test_built_once_and_kept(outputs: Path) -> None:
    folder = get(ArtifactStore(outputs))
    assert len(json.loads((folder / "table.json").read_text())) == 3
    record = json.loads((folder / "artifact.json").read_text())
    assert record["node"] == NODE
    assert set(record) >= {"fingerprint", "content", "provenance", "wall_seconds", "cpu_seconds"}
    assert get(ArtifactStore(outputs)) == folder
    assert built(outputs) == ["3"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["built.log", folder.name]


def test_other_arguments_are_another_artifact(outputs: Path) -> None:
    store = ArtifactStore(outputs)
    assert len({get(store), get(store, size=4), get(store, seed=1)}) == 3
    assert built(outputs) == ["3", "4", "3"]


def test_the_same_bytes_have_the_same_checksum(outputs: Path, tmp_path: Path) -> None:
    one = ArtifactStore(outputs).get(Artifact(NODE))[1]
    assert one == ArtifactStore(tmp_path / "elsewhere").get(Artifact(NODE))[1]
    assert one != ArtifactStore(outputs).get(Artifact(NODE | {"seed": 1}))[1]


@pytest.mark.parametrize("spoil", ["record gone", "record torn", "another node", "other code"])
def test_what_is_not_whole_is_built_again(outputs: Path, spoil: str) -> None:
    folder = get(ArtifactStore(outputs))
    record = folder / "artifact.json"
    content = json.loads(record.read_text())
    if spoil == "record gone":
        record.unlink()
    elif spoil == "record torn":
        record.write_text(record.read_text()[:30])
    else:
        change = {"node": {}} if spoil == "another node" else {"fingerprint": "older"}
        record.write_text(json.dumps(content | change))
    (folder / "left-over").write_text("x")
    assert ArtifactStore(outputs).find(NODE) is None
    assert get(ArtifactStore(outputs)) == folder
    assert built(outputs) == ["3", "3"]
    assert not (folder / "left-over").exists()


def test_a_build_that_was_killed_leaves_nothing_that_is_served(outputs: Path) -> None:
    half = ArtifactStore(outputs).path(NODE).with_suffix(".building")
    half.mkdir(parents=True)
    (half / "table.json").write_text("[")
    assert len(json.loads((get(ArtifactStore(outputs)) / "table.json").read_text())) == 3


def test_a_published_artifact_serves(outputs: Path, tmp_path: Path) -> None:
    folder = get(ArtifactStore(outputs))
    published = places.results() / "artifacts" / folder.parent.name / folder.name
    published.parent.mkdir(parents=True)
    shutil.move(folder, published)
    assert get(ArtifactStore(outputs)) == published
    assert built(outputs) == ["3"]


def test_artifacts_of_artifacts(outputs: Path) -> None:
    outer = {
        "_target_": "tests.runners.test_artifacts.copy_table",
        "_artifact_": True,
        "table": NODE,
        "seed": 0,
    }
    folder, _ = ArtifactStore(outputs).get(Artifact(outer))
    assert (folder / "copy.json").read_text() == (get(ArtifactStore(outputs)) / "table.json").read_text()
    assert built(outputs) == ["3"]
    assert list(nodes({"task": {"a": outer}})) == [NODE, outer]


def copy_table(out: Path, table: Path, seed: int) -> None:
    """An artifact made from another one."""
    shutil.copy(table / "table.json", out / "copy.json")


def test_a_build_does_not_disturb_the_run_s_draws(outputs: Path) -> None:
    import random

    random.seed(5)
    expected = [random.random() for _ in range(2)]
    random.seed(5)
    first = random.random()
    get(ArtifactStore(outputs))
    assert [first, random.random()] == expected


def test_processes_that_ask_at_once_build_once(outputs: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(HOME)!r})\n"
        "from pathlib import Path\nfrom runners.artifacts import ArtifactStore\nfrom runners.build import Artifact\n"
        f"print(ArtifactStore(Path({str(outputs)!r})).get(Artifact({NODE!r}))[1])\n"
    )
    asked = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)]
    answers = {process.communicate(timeout=60)[0] for process in asked}
    assert len(answers) == 1
    assert built(outputs) == ["3"]


def test_a_run_names_the_artifact_it_used(outputs: Path) -> None:
    executor = Executor(outputs, progress=False)
    config = compose_run("toy/descent", "toy/prepared", lambda _: [])
    outcome = executor.run(config)
    assert outcome.status == "done"
    result = json.loads((executor.store.folder(config) / "result.json").read_bytes())
    (name, content), *_ = result["artifacts"].items()
    assert json.loads((outputs / "artifacts" / name / "artifact.json").read_text())["content"] == content


def test_a_build_that_fails_costs_its_runs_only(
    sweep: Callable[..., Any], conf: Callable[[str, str], Path], outputs: Path
) -> None:
    conf(
        "task/toy/hopeless.yaml",
        "_target_: reprise_toy.tasks.Prepared\ninterface: reprise_toy.interface.Method\n"
        "table: {_target_: tests.runners.test_artifacts.hopeless, _artifact_: true, log: null}\n",
    )
    log = outputs.parent / "hopeless.log"
    conf(
        "paper/hopeless.yaml",
        "experiments:\n"
        f"  bad: {{grid: {{method: toy/descent, task: toy/hopeless, task.table.log: {log}, seed: range(4)}}}}\n"
        "  good: {grid: {method: toy/descent, task: toy/bowl, seed: range(3)}}\n",
    )
    made = sweep("hopeless")
    made.run()
    assert log.read_text() == "tried\n"
    assert len(made.results) == 3
    assert len(made.failures) == 5  # the artifact and its four runs
    assert {record["status"] for record in made.records("bad")} == {"failed"}
    assert "could not be built" in made.failures[-1]
    assert "ArithmeticError: no table today" in made.failures[0]
    trace = next((outputs / "artifacts").rglob("*.failure.txt")).read_text()
    assert "ArithmeticError: no table today" in trace


def hopeless(out: Path, log: str) -> None:
    """A preparation that fails."""
    with open(log, "a") as file:
        file.write("tried\n")
    raise ArithmeticError("no table today")


def test_missing_data_in_a_build_is_no_full_disk(
    sweep: Callable[..., SimpleNamespace], conf: Callable[[str, str], Path]
) -> None:
    conf(
        "task/toy/absent.yaml",
        "_target_: reprise_toy.tasks.Prepared\ninterface: reprise_toy.interface.Method\n"
        "table: {_target_: tests.runners.test_artifacts.absent, _artifact_: true}\n",
    )
    conf("paper/absent.yaml", "experiments: {one: {grid: {method: toy/descent, task: toy/absent}}}\n")
    made = sweep("absent")
    made.run()
    assert "words is missing: make fetch-absent" in made.failures[0]


def absent(out: Path) -> None:
    """A preparation whose data is not there."""
    from tasks.data.resolve import MissingData

    raise MissingData("words is missing: make fetch-<paper>")
