"""Weights & Biases: offline runs are complete, and nothing that goes wrong there touches a run."""

import json
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

wandb = pytest.importorskip("wandb")
from wandb.proto import wandb_internal_pb2 as pb  # noqa: E402

from runners import compose, identity, places, yamls  # noqa: E402
from runners.execute import Executor  # noqa: E402
from runners.trackers import wandb as tracker  # noqa: E402
from tests.runners.conftest import HOME, numbers  # noqa: E402

KEY = "0123456789abcdef0123456789abcdef01234567"  # of the form of a key, and no one's
LABELS = {"paper": "toy", "scale": "smoke", "experiment": "bowl"}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has said nothing yet, whose server has not failed yet; no one's account."""
    monkeypatch.setattr(tracker, "_warned", set())
    monkeypatch.setattr(tracker, "_unreachable", threading.Event())
    for name in (
        "WANDB_API_KEY",
        "WANDB_BASE_URL",
        "WANDB_MODE",
        "WANDB_DIR",
        "WANDB_PROJECT",
        "WANDB_ENTITY",
    ):
        monkeypatch.delenv(name, raising=False)
    yield
    wandb.teardown()  # its service reads the environment when it starts


def node(**changes: Any) -> dict[str, Any]:
    """The tracker's YAML with changes."""
    path = places.option_file("tracker", "wandb")
    assert path is not None
    return yamls.load(path) | changes


def bowl(seed: int = 0, **leaves: Any) -> dict[str, Any]:
    """A small run's config."""
    triples = [("seed", seed, ""), *((key.replace("__", "."), value, "") for key, value in leaves.items())]
    return compose.compose_run("toy/descent", "toy/bowl", lambda _: triples)


def execute(root: Path, config: dict[str, Any], **changes: Any) -> Any:
    """Execute a run with the tracker."""
    executor = Executor(root, tracker=node(**changes), progress=False)
    outcome = executor.run(config, labels=LABELS)
    executor.claims.close()
    return outcome


def records(path: Path) -> list[Any]:
    """Records of a .wandb file: a 7-byte file header, then LevelDB's log format in blocks of 32 KiB.

    https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    data, place, parts, found = path.read_bytes(), 7, b"", []
    assert data[:4] in (b":W&B", b"")
    while place < len(data):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        head = data[place : place + 7]
        size, kind = int.from_bytes(head[4:6], "little"), head[-1]
        if place + 7 + size > len(data):
            break  # the rest is not written yet
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or its last part
            found.append(pb.Record.FromString(parts))
            parts = b""
    return found


def offline(root: Path) -> list[dict[str, Any]]:
    """What wandb's own format holds of each run, once its service has written the last of it."""
    until = time.monotonic() + 20
    while True:
        runs = read(root)
        if all(run["exit"] is not None for run in runs) or time.monotonic() > until:
            return runs
        time.sleep(0.05)


def read(root: Path) -> list[dict[str, Any]]:
    """What wandb's own format holds of each run now: header, config, history, summary, exit code."""
    runs = []
    for path in sorted(root.glob("wandb/offline-run-*/*.wandb")):
        entry: dict[str, Any] = {
            "config": {},
            "history": [],
            "summary": {},
            "exit": None,
            "folder": path.parent,
        }
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                entry["run"] = record.run
                entry["config"] |= {
                    item.key: json.loads(item.value_json) for item in record.run.config.update
                }
            elif kind == "config":
                entry["config"] |= {item.key: json.loads(item.value_json) for item in record.config.update}
            elif kind == "history":
                items = record.history.item
                row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                entry["history"].append({key: value for key, value in row.items() if not key.startswith("_")})
            elif kind == "summary":
                for item in record.summary.update:
                    entry["summary"][item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
            elif kind == "exit":
                entry["exit"] = record.exit.exit_code
        runs.append(entry)
    return runs


def lines(root: Path, run_id: str) -> list[dict[str, Any]]:
    """Metrics as our own records have them."""
    (path,) = root.glob(f"*/*/*/{run_id}/metrics.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_metric_config_and_summary_is_there(outputs):
    config = bowl(seed=3, task__steps=400)  # several blocks of the file
    outcome = execute(outputs, config)
    (run,) = offline(outputs)
    assert len(run["history"]) == 400
    assert run["history"] == lines(outputs, outcome.id)
    assert run["config"].items() >= identity.canonical(config).items()
    assert run["config"]["run_id"] == outcome.id
    assert run["config"]["provenance"]["python"]
    (result,) = outputs.glob("*/*/*/*/result.json")
    assert run["summary"].items() >= json.loads(result.read_bytes())["summary"].items()
    assert run["summary"]["status"] == "done"
    assert run["exit"] == 0
    assert (run["run"].project, run["run"].run_group) == ("reprise", "toy/bowl")
    assert run["run"].display_name == "descent bowl seed 3"
    assert {"toy", "bowl", "smoke"} <= set(run["run"].tags)


def test_rows_of_equal_and_falling_steps_stay_apart(tmp_path):
    given = [{"step": 5, "loss": 1.0}, {"step": 5, "loss": 2.0, "note": None}, {"step": 0.5, "loss": 3.0}]
    run = tracker.Wandb(bowl(), "x", {}, tmp_path, dir=str(tmp_path))
    for line in given:
        run.log(line)
    run.finish("done", {"never": None})
    (found,) = offline(tmp_path)
    assert found["history"] == given
    assert found["summary"]["never"] is None


def test_failed_run_is_told(tmp_path):
    config = compose.compose_run("toy/bad", "toy/bowl", lambda _: [])
    outcome = execute(tmp_path, config)
    assert outcome.status == "failed"
    (run,) = offline(places.outputs())
    assert (run["summary"]["status"], run["exit"]) == ("failed", 1)


def test_each_attempt_is_a_run_of_its_own(tmp_path):
    executor = Executor(tmp_path, tracker=node(dir=str(tmp_path)), progress=False)
    outcomes = [executor.run(bowl(), labels=LABELS, again=True) for _ in range(2)]
    executor.claims.close()
    first, second = offline(tmp_path)
    assert first["run"].run_id != second["run"].run_id
    assert first["config"]["run_id"] == second["config"]["run_id"] == outcomes[0].id
    assert first["history"] == second["history"]


@pytest.mark.slow
def test_reproduce_logs_runs_verdicts_and_figures(command, outputs):
    ended = command(
        "runners.reproduce", "paper=toy", "scale=smoke", "experiment=bowl", "seeds=3", "tracker=wandb"
    )
    assert ended.code == 0, ended.err
    (report,) = [run for run in offline(outputs) if run["run"].job_type == "report"]
    runs = [run for run in offline(outputs) if run["run"].job_type == "smoke"]
    assert {run["run"].run_group for run in runs} == {"toy/bowl"}
    recorded = numbers(outputs)
    assert len(runs) == len(recorded) == 6
    for run in runs:
        assert run["history"] == lines(outputs, run["config"]["run_id"])
        assert run["summary"].items() >= recorded[run["config"]["run_id"]][1].items()
    folder = outputs / "report" / "toy" / "smoke"
    verdicts = json.loads((folder / "verdicts.json").read_bytes())
    assert verdicts["claims"]
    assert any(entry["value"] is not None for entry in verdicts["claims"])
    for kind in ("claims", "findings"):
        for entry in verdicts[kind]:
            for column in ("verdict", "value", "low", "high", "units"):
                assert report["summary"][f"{kind}/{entry['id']}/{column}"] == entry[column]
    (row,) = [row for row in report["history"] if row]
    table = json.loads((report["folder"] / "files" / row["claims/path"]).read_bytes())
    assert [line[0] for line in table["data"]] == [entry["id"] for entry in verdicts["claims"]]
    drawn = sorted((folder / "figures").glob("*.svg"))
    assert drawn
    for path in drawn:
        logged = report["folder"] / "files" / row[f"figures/{path.stem}/path"]
        assert logged.read_text() == path.read_text()


def test_numbers_are_the_same_with_and_without(tmp_path):
    execute(tmp_path / "with", bowl(task__repeats=3))
    plain = Executor(tmp_path / "without", progress=False)
    plain.run(bowl(task__repeats=3))
    plain.claims.close()
    assert numbers(tmp_path / "with") == numbers(tmp_path / "without")


def test_global_random_states_are_left_alone(tmp_path):
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 (the global state is what is watched)
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    run = tracker.Wandb(bowl(), "x", LABELS, tmp_path, dir=str(tmp_path))
    run.log({"step": 0, "loss": 1.0})
    run.finish("done", {})
    assert len(offline(tmp_path)) == 1
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002


@pytest.mark.parametrize("place", ["init", "log", "finish"])
def test_an_error_is_one_line_and_the_run_is_done(place, outputs, monkeypatch, capsys):
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no more\nof this")

    monkeypatch.setattr(*((wandb, "init") if place == "init" else (wandb.Run, place)), fail)
    outcomes = [execute(outputs, bowl(seed)) for seed in range(2)]
    assert [outcome.status for outcome in outcomes] == ["done", "done"]
    assert len(numbers(outputs)) == 2
    assert capsys.readouterr().err == "wandb: RuntimeError: no more of this (the runs go on)\n"


def test_absent_package_is_one_line(outputs, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    assert [execute(outputs, bowl(seed)).status for seed in range(2)] == ["done", "done"]
    (line,) = capsys.readouterr().err.splitlines()
    assert "in the extra `wandb`" in line


@pytest.mark.parametrize("place", ["init", "log", "finish"])
def test_a_call_that_hangs_holds_no_run_up(place, outputs, monkeypatch, capsys):
    released = threading.Event()

    def hang(*_: Any, **__: Any) -> None:
        released.wait(60)
        raise SystemExit

    monkeypatch.setattr(*((wandb, "init") if place == "init" else (wandb.Run, place)), hang)
    started = time.monotonic()
    assert execute(outputs, bowl(), finish_seconds=1.0).status == "done"
    assert time.monotonic() - started < 20
    assert "no end after 1 s" in capsys.readouterr().err
    released.set()
    for thread in [thread for thread in threading.enumerate() if thread.name == "wandb"]:
        thread.join(10)  # its last words belong to this test


def files_with(root: Path, text: str) -> list[Path]:
    """Files under ``root`` that hold a text."""
    return [path for path in root.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


class Failing(BaseHTTPRequestHandler):
    """Answers everything with an internal error."""

    def do_POST(self) -> None:
        self.send_error(500)

    do_GET = do_PUT = do_POST  # noqa: N815 (http.server's names)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("server", ["refuses", "hangs", "answers 500"])
def test_without_a_server_offline_runs_are_complete(server, outputs, monkeypatch, capsys, request):
    if server == "answers 500":
        http_server = HTTPServer(("127.0.0.1", 0), Failing)
        threading.Thread(target=http_server.serve_forever, daemon=True).start()
        request.addfinalizer(http_server.server_close)
        request.addfinalizer(http_server.shutdown)
        port = http_server.server_port
    else:
        listener = socket.socket()
        request.addfinalizer(listener.close)
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        if server == "hangs":
            listener.listen()  # connections are taken, and never answered
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    outcomes = [execute(outputs, bowl(seed), mode="online", finish_seconds=12.0) for seed in range(3)]
    assert [outcome.status for outcome in outcomes] == ["done"] * 3
    kept = {run["config"]["run_id"]: run["history"] for run in offline(outputs) if run["history"]}
    assert kept == {outcome.id: lines(outputs, outcome.id) for outcome in outcomes}
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "offline instead" in err
    assert KEY not in err
    assert files_with(outputs, bowl()["method"]["_target_"])  # the search does find what is there
    assert files_with(outputs, KEY) == []


def test_online_without_a_key_does_not_ask(outputs, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(outputs))
    monkeypatch.setenv("NETRC", str(outputs / "netrc"))
    assert execute(outputs, bowl(), mode="online").status == "done"
    assert re.fullmatch(r"wandb: .*no API key.*offline instead \(the runs go on\)\n", capsys.readouterr().err)
    assert len(offline(outputs)) == 1


def test_make_sync_finds_what_was_recorded_offline(outputs):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    assert execute(outputs, bowl()).status == "done"
    (run,) = offline(outputs)
    recipe = ["make", "--no-print-directory", "-n", "sync", "ARGS=--dry-run"]
    commands = subprocess.run(recipe, cwd=HOME, capture_output=True, text=True, check=True).stdout
    command = commands.splitlines()[-1].replace(".venv/bin/python", sys.executable)
    ended = subprocess.run(command, shell=True, cwd=HOME, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "Would sync 1 run" in ended.stderr
    assert run["run"].run_id in ended.stderr


def many_runs(root: Path, count: int) -> tuple[list[int], list[int], list[int]]:
    """Open files (ours and the service's) and threads after each run."""
    ours, service, threads = [], [], []
    me = psutil.Process()
    for seed in range(count):
        assert execute(root, bowl(seed, task__steps=1)).status == "done"
        ours.append(me.num_fds())
        service.append(sum(child.num_fds() for child in me.children(recursive=True)))
        threads.append(me.num_threads())
    assert len(offline(places.outputs())) == count
    return ours, service, threads


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_open_files_do_not_grow(count, tmp_path):
    ours, service, threads = many_runs(tmp_path, count)
    warm = 10
    assert max(ours[-10:]) <= max(ours[:warm]) + 2
    assert max(service[-10:]) <= max(service[:warm]) + 2 * warm
    assert max(threads[-10:]) <= max(threads[:warm]) + 3
