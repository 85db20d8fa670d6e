"""A package elsewhere adds methods, tasks and papers: an entry point, a conf folder, not one edit here."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from runners import compose, places
from runners.fingerprint import Fingerprinter
from tests.runners.conftest import PLUGIN, forget


def test_the_package_is_found_by_its_entry_point() -> None:
    assert "reprise_toy" in places.plugin_packages()
    assert places.conf_roots()[0] == places.HOME / "conf"
    assert PLUGIN / "reprise_toy" / "conf" in places.conf_roots()
    assert places.our_packages()[:2] == ("methods", "tasks")
    assert "reprise_toy" in places.our_packages()


def test_its_options_stand_beside_ours() -> None:
    assert "toy/descent" in places.options("method")
    assert "zeroth_order/radazo" in places.options("method")
    assert "toy" in places.options("paper")
    assert (
        places.option_file("method", "toy/descent") == PLUGIN / "reprise_toy" / "conf/method/toy/descent.yaml"
    )
    assert places.option_file("method", "toy/nothing") is None


def test_its_methods_run_on_its_tasks(command: Callable[..., SimpleNamespace]) -> None:
    assert command("runners.run", "method=toy/descent", "task=toy/bowl", "task.steps=2").code == 0


def test_its_code_is_part_of_the_fingerprint() -> None:
    config = compose.compose_run("toy/descent", "toy/bowl", lambda _: [])
    modules = Fingerprinter().modules({config["method"]["_target_"], config["task"]["_target_"]})
    assert {"reprise_toy", "reprise_toy.methods", "reprise_toy.helper", "reprise_toy.tasks"} == set(modules)


def test_papers_are_listed_with_their_verdicts_at_both_scales(
    command: Callable[..., SimpleNamespace],
) -> None:
    for scale, verdicts in {
        "smoke": ["reproduced"],
        "laptop": ["reproduced", "inconclusive", "reproduced", "shown"],
        "paper": ["not run"],
    }.items():
        path = places.results() / "toy" / scale / "verdicts.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"claims": [{"verdict": verdict} for verdict in verdicts]}))
    line = next(line for line in command("runners.list").out.splitlines() if line.startswith("toy "))
    assert line.endswith("on a line  [laptop: 2 reproduced, 1 inconclusive]  [paper: nothing judged]")


def test_the_lists_name_them(command: Callable[..., SimpleNamespace]) -> None:
    assert "toy/descent\n" in command("runners.list", "methods", "kind=toy").out
    assert "toy/bowl\n" in command("runners.list", "tasks").out
    assert "Going downhill on a line" in command("runners.list").out
    shown = command("runners.show", "paper=toy").out
    for text in (
        "bowl: Which method gets down?",
        "lower_gap: Descent ends lower",
        "needs a cluster for a week",
    ):
        assert text in shown


def test_a_folder_of_one_s_own_adds_options(
    conf: Callable[[str, str], Path], command: Callable[..., SimpleNamespace]
) -> None:
    conf(
        "method/toy/mine.yaml",
        "_target_: reprise_toy.methods.Sign\n_partial_: true\ninterface: reprise_toy.interface.Method\nlr: 0.5\n",
    )
    assert command("runners.run", "method=toy/mine", "task=toy/bowl", "task.steps=2").code == 0


def test_ours_come_first(conf: Callable[[str, str], Path]) -> None:
    conf("method/toy/descent.yaml", "_target_: reprise_toy.methods.Sign\n_partial_: true\n")
    assert (
        places.option_file("method", "toy/descent") == PLUGIN / "reprise_toy" / "conf/method/toy/descent.yaml"
    )
    config = compose.compose_run("toy/descent", "toy/bowl", lambda _: [])
    assert config["method"]["_target_"] == "reprise_toy.methods.Descent"


def test_a_folder_that_is_not_there_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REPRISE_CONF", f"{tmp_path / 'nowhere'}::{tmp_path}")
    forget(options=False)
    assert places.conf_roots()[-1] == tmp_path
    assert tmp_path / "nowhere" not in places.conf_roots()
    monkeypatch.undo()
    forget(options=False)


def test_without_the_package_there_is_no_toy(process: Callable[..., SimpleNamespace]) -> None:
    listed = process("runners.list", "methods", env={"PYTHONPATH": ""})
    assert listed.code == 0
    assert "toy/" not in listed.out
    ended = process("runners.run", "method=toy/descent", "task=toy/bowl", env={"PYTHONPATH": ""})
    assert ended.code == 2
    assert "unknown method 'toy/descent'" in ended.err or "unknown task 'toy/bowl'" in ended.err


def test_what_cannot_be_fetched_can_be_put_in_place(
    command: Callable[..., SimpleNamespace],
    conf: Callable[[str, str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fetch that failed does not advise itself: it says where the file goes and how it is told."""
    monkeypatch.setenv("REPRISE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("REPRISE_OFFLINE", "1")
    text = b"abc"
    digest = hashlib.sha256(text).hexdigest()
    conf(
        "task/toy/filed.yaml",
        "_target_: reprise_toy.tasks.Prepared\ninterface: reprise_toy.interface.Method\ntable: null\n"
        "data: {_target_: tasks.data.resolve.Door, name: Letters, size_mb: 1, licence: MIT,"
        f" files: {{set/abc.txt: {digest}}}, urls: {{set/abc.txt: 'http://nowhere/abc.txt'}}}}\n",
    )
    conf("paper/filed.yaml", "title: x\nexperiments: {one: {grid: {method: toy/descent, task: toy/filed}}}\n")
    ended = command("runners.fetch", "paper=filed", "scale=smoke")
    place = tmp_path / "data" / "set" / "abc.txt"
    assert ended.code == 1
    assert ended.err.splitlines() == [
        "missing: Letters is missing: set/abc.txt (1 MB in all, MIT)",
        f"  put it at {place} (SHA-256 {digest}), from http://nowhere/abc.txt",
        "then: make fetch-filed scale=smoke, which checks what is there",
    ]
    place.parent.mkdir(parents=True)
    place.write_bytes(text)
    assert command("runners.fetch", "paper=filed", "scale=smoke").code == 0


def test_fetching_what_needs_nothing(command: Callable[..., SimpleNamespace]) -> None:
    ended = command("runners.fetch", "paper=toy")
    assert (ended.code, ended.out) == (0, "toy needs no data at scale laptop\n")
