"""The store: what counts as finished, what does not and says why, what reads back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners import compose, identity, store
from runners.execute import Executor
from runners.store import Store


def config(*leaves: tuple[str, Any], **options: Any) -> dict[str, Any]:
    """A small run."""
    leaves = (("task.steps", 3), *leaves)
    return compose.compose_run(
        options.get("method", "toy/descent"),
        options.get("task", "toy/bowl"),
        lambda _: [(path, value, "") for path, value in leaves],
    )


@pytest.fixture
def execute(outputs: Path) -> Callable[..., Path]:
    """Execute a run; returns its folder."""
    executor = Executor(outputs, progress=False)

    def run(wanted: dict[str, Any], **options: Any) -> Path:
        outcome = executor.run(wanted, **options)
        assert outcome.status in store.FINAL, outcome
        return executor.store.folder(wanted)

    return run


def look(where: Store, wanted: dict[str, Any], fingerprint: str | None = None, **options: Any) -> store.Hit:
    """Look a run up by its config."""
    return where.look(wanted, identity.run_id(wanted), fingerprint, **options)


def test_a_finished_run_is_found(store: Store, execute: Callable[..., Path]) -> None:
    assert look(store, config()).state == "missing"
    folder = execute(config())
    hit = look(store, config())
    assert hit.state == "finished"
    assert hit.result is not None
    assert set(hit.result["summary"]) == {"gap"}
    assert not hit.problems
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "metrics.jsonl", "result.json"]
    assert store.find(identity.run_id(config())) == folder
    assert look(store, config(("seed", 1))).state == "missing"


def test_provenance_stands_with_the_result(store: Store, execute: Callable[..., Path]) -> None:
    execute(config())
    result = look(store, config()).result
    assert result is not None
    assert set(result["provenance"]) == {"commit", "dirty", "python", "packages", "hardware", "threads"}
    assert result["wall_seconds"] >= 0
    assert result["cpu_seconds"] >= 0
    assert result["peak_memory_mb"] > 1
    assert len(result["fingerprint"]) == 16


SPOILED: dict[str, Callable[[Path], Any]] = {
    "empty": lambda folder: (folder / "result.json").write_text(""),
    "torn": lambda folder: (folder / "result.json").write_bytes((folder / "result.json").read_bytes()[:40]),
    "not text": lambda folder: (folder / "result.json").write_bytes(b"\xff\xfe\x00"),
    "a list": lambda folder: (folder / "result.json").write_text("[1]"),
    "foreign": lambda folder: (folder / "result.json").write_text('{"status": "done", "config": {}}'),
    "foreign status": lambda folder: change(folder, status=["done"]),
    "unfinished": lambda folder: change(folder, status="running"),
    "another config": lambda folder: change(folder, config={"method": {}}),
    "metrics torn": lambda folder: (folder / "metrics.jsonl").write_bytes(
        (folder / "metrics.jsonl").read_bytes()[:-5]
    ),
    "metrics gone": lambda folder: (folder / "metrics.jsonl").unlink(),
    "metrics longer": lambda folder: (folder / "metrics.jsonl").open("a").write("{}\n"),
    "rows from nowhere": lambda folder: (folder / "rows.jsonl").write_text("{}\n"),
}


def change(folder: Path, **entries: Any) -> None:
    """Change entries of a result."""
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | entries))


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_not_whole_is_reported_and_run_again(
    store: Store, execute: Callable[..., Path], name: str
) -> None:
    folder = execute(config())
    before = look(store, config()).result
    SPOILED[name](folder)
    hit = look(store, config())
    assert hit.state == "missing"
    assert len(hit.problems) == 1
    assert str(folder) in hit.problems[0]
    assert hit.problems[0].endswith("run again")
    execute(config())
    after = look(store, config())
    assert (after.state, after.problems) == ("finished", [])
    assert after.result is not None
    assert before is not None
    assert after.result["summary"] == before["summary"]


def test_other_things_in_the_store_are_passed_over(store: Store, execute: Callable[..., Path]) -> None:
    folder = execute(config())
    for path in (
        store.root / "notes.txt",
        store.root / "toy" / "x",
        folder / "weights.pt",
        folder / ".DS_Store",
    ):
        path.write_text("mine")
    stranger = folder.parent / "0123456789abcdef0123"
    stranger.mkdir()
    (stranger / "result.json").write_text("{")
    other = folder.parent / "somebody"
    other.mkdir()
    (other / "result.json").mkdir()
    assert [result["id"] for result in store.results()] == [folder.name]
    assert len(store.frame()) == 1
    assert look(store, config()).state == "finished"


def test_staleness(store: Store, execute: Callable[..., Path]) -> None:
    execute(config())
    result = look(store, config()).result
    assert result is not None
    assert look(store, config(), result["fingerprint"]).state == "finished"
    assert look(store, config(), "other").state == "stale"
    kept = look(store, config(), "other", stale="keep")
    assert (kept.state, kept.result and kept.result["stale"]) == ("finished", True)


def test_a_run_goes_stale_with_the_run_it_needed(store: Store, execute: Callable[..., Path]) -> None:
    opponent = execute(config())
    node = {"_run_": opponent.name, "folder": str(opponent.relative_to(store.root)), "_name_": "descent"}
    duel = config(("task.opponent", node), task="toy/duel")
    execute(duel)
    fingerprint = (look(store, duel).result or {})["fingerprint"]
    assert look(store, duel, fingerprint).state == "finished"
    change(opponent, fingerprint="newer")
    assert look(store, duel, fingerprint).state == "stale"
    (opponent / "result.json").unlink()
    assert look(store, duel, fingerprint).state == "stale"


def test_not_a_number_in_a_config_is_found_again(store: Store, execute: Callable[..., Path]) -> None:
    odd = config(("task.noise", float("nan")), method="toy/descent")
    executor = Executor(store.root, progress=False)
    assert executor.run(odd).status == "diverged"
    assert executor.run(odd).cached


def test_failures_are_kept_beside(store: Store, outputs: Path) -> None:
    assert store.failure(config(), "x") is None
    store.record_failure(config(), "x", "timeout", "too slow", "where")
    assert (store.failure(config(), "x") or {})["status"] == "timeout"
    (store.folder(config(), "x") / "failure.json").write_text('{"a": 1}')
    assert store.failure(config(), "x") is None


def test_the_frame_has_what_varies(store: Store, execute: Callable[..., Path]) -> None:
    for seed in (0, 1):
        for lr in (0.1, 0.2):
            execute(config(("seed", seed), ("method.lr", lr)))
    execute(config(method="toy/sign"))
    frame = store.frame()
    assert list(frame.columns[:6]) == ["id", "method", "task", "seed", "status", "seconds"]
    assert "method.lr" in frame
    assert "task.steps" not in frame
    assert "gap" in frame
    assert len(frame) == 5
    assert set(frame["method"]) == {"toy/descent", "toy/sign"}
    assert list(Store(store.root / "nothing").frame().columns) == list(frame.columns[:6])


def test_curves_and_rows_read_back(store: Store, execute: Callable[..., Path]) -> None:
    from runners.store import curve, rows_frame, tables

    folder = execute(config(("task.repeats", 4)))
    result = look(store, config(("task.repeats", 4))).result
    lines = curve(folder, result)
    assert list(lines["step"]) == [0, 1, 2]
    assert lines.attrs["config"]["task"]["repeats"] == 4
    assert list(tables(folder, "repeat")["i"]) == [0, 1, 2, 3]
    assert tables(folder, "image").empty
    rows = rows_frame(store.frame(), lambda _: folder, "repeat")
    assert len(rows) == 4
    assert set(rows["method"]) == {"toy/descent"}


def test_a_torn_last_line_is_left_out_and_no_other(tmp_path: Path) -> None:
    from runners.store import read_lines

    path = tmp_path / "lines.jsonl"
    assert read_lines(path) == []
    path.write_text('{"step": 0}\n{"step": 1}\n{"st')
    assert read_lines(path) == [{"step": 0}, {"step": 1}]
    path.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"lines.jsonl:2: not JSON"):
        read_lines(path)


def test_atomic_writing_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runners.store import write_atomic

    path = tmp_path / "file"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "new \ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    write_atomic(path, "new")
    assert path.read_text() == "new"
