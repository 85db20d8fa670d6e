"""``python -m runners.run``: one run, a stored run again, a paper's cells, Hydra sweeps over the same store."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from runners import identity
from runners.compose import compose_run
from tests.runners.conftest import numbers

Command = Callable[..., SimpleNamespace]
RUN = ("runners.run", "method=toy/descent", "task=toy/bowl", "task.steps=3")


def the_id(text: str) -> str:
    """The id a command has printed."""
    found = re.search(r"\b[0-9a-f]{20}\b", text)
    assert found, text
    return found[0]


def test_a_run_says_what_it_found(command: Command, outputs: Path) -> None:
    ended = command(*RUN, "seed=3")
    assert ended.code == 0
    assert ended.out.startswith("done ")
    assert re.search(r"^  gap: 0\.\d+$", ended.out, re.M)
    assert ended.err == ""
    config = compose_run("toy/descent", "toy/bowl", lambda _: [("task.steps", 3, ""), ("seed", 3, "")])
    assert the_id(ended.out) == identity.run_id(config)
    assert (outputs / identity.folder(config, the_id(ended.out)) / "result.json").is_file()


def test_the_second_time_it_is_stored(command: Command) -> None:
    command(*RUN)
    assert command(*RUN).out.startswith("done (stored) ")
    assert command(*RUN, "again=true").out.startswith("done ")
    assert not command(*RUN, "again=true").out.startswith("done (stored)")
    assert command(*RUN, "task.steps=3.0", "seed=0", "launcher=local", "tracker=none").out.startswith(
        "done (stored) "
    )


def test_a_stored_run_again_by_its_id(command: Command, outputs: Path) -> None:
    name = the_id(command(*RUN, "+method.name='1e-3'", "method.lr=1e-2").out)
    before = numbers(outputs)
    ended = command("runners.run", f"id={name}")
    assert ended.code == 0
    assert ended.out.startswith(f"done {name} ")
    assert numbers(outputs) == before
    assert len(before) == 1


@pytest.mark.parametrize(
    ("how", "code", "out", "err"),
    [
        ("nan", 0, "diverged", "step 0: gap is not finite"),
        ("raise", 1, "failed", "ArithmeticError: this method cannot add"),
        ("exit", 1, "failed", "SystemExit: 0"),
    ],
)
def test_how_runs_end(command: Command, how: str, code: int, out: str, err: str) -> None:
    ended = command("runners.run", "method=toy/bad", "task=toy/bowl", f"method.how='{how}'")
    assert ended.code == code
    assert ended.out.startswith(out)
    assert ended.err.strip() == err


def test_a_run_that_another_process_has(command: Command, outputs: Path) -> None:
    from runners.lease import Claims

    config = compose_run("toy/descent", "toy/bowl", lambda _: [("task.steps", 3, "")])
    folder = outputs / identity.folder(config, identity.run_id(config))
    folder.mkdir(parents=True)
    with Claims(outputs).claim(folder):
        ended = command(*RUN)
    assert ended.code == 1
    assert "another process is at it" in ended.err


def test_ctrl_c(command: Command, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reprise_toy.tasks import Bowl

    def evaluate(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bowl, "evaluate", evaluate)
        ended = command(*RUN)
    assert ended.code == 130
    assert ended.err.startswith("stopped; what is finished is kept")
    assert not list(outputs.rglob("claim"))
    assert command(*RUN).code == 0


def test_panels_and_choices_of_groups(command: Command) -> None:
    ended = command("runners.run", "method=[toy/descent,toy/sign]", "task=toy/race")
    assert ended.code == 0
    assert "/toy/panel-" in ended.out


def test_a_paper_s_cells(command: Command, outputs: Path) -> None:
    ended = command("runners.run", "paper=toy", "experiment=race", "scale=smoke")
    assert ended.code == 0, ended.err
    assert len(numbers(outputs)) == 1
    assert "race_ahead" in ended.out


def test_help(command: Command) -> None:
    for module in ("run", "reproduce", "list", "show", "fetch", "verify"):
        ended = command(f"runners.{module}", "--help")
        assert ended.code == 0
        assert ended.out.startswith(f"usage: python -m runners.{module}")


# -- Hydra sweeps ------------------------------------------------------------------------------------------------------


def test_a_sweep_makes_the_same_runs(command: Command, outputs: Path) -> None:
    for seed in range(3):
        for method in ("descent", "sign"):
            command(
                "runners.run",
                f"method=toy/{method}",
                "task=toy/bowl",
                "task.steps=3",
                f"seed={seed}",
                "method.lr=1",
            )
    before = numbers(outputs)
    assert len(before) == 6
    ended = command(
        "runners.run",
        *(
            "-m",
            "method=toy/descent,toy/sign",
            "task=toy/bowl",
            "task.steps=3.0",
            "seed=range(3)",
            "method.lr=1",
        ),
    )
    assert ended.code == 0, ended.err
    assert ended.out.count("done (stored)") == 6
    assert numbers(outputs) == before


def test_a_sweep_over_half_finished_ones_makes_what_is_missing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "toy.log"
    monkeypatch.setenv("REPRISE_TOY_LOG", str(log))
    arguments = ("runners.run", "-m", "method=toy/descent", "task=toy/bowl", "task.steps=3")
    command(*arguments, "seed=0,1")
    assert log.read_text().count("begin") == 2
    command(*arguments, "seed=0,1,2,3")
    assert log.read_text().count("begin") == 4
    command(*arguments, "seed=0", "again=true")
    assert log.read_text().count("begin") == 5


def test_a_sweep_s_exit_code_is_its_worst_run_s(command: Command) -> None:
    ended = command("runners.run", "-m", "method=toy/bad", "task=toy/bowl", "method.how=none,raise,'nan'")
    assert ended.code == 1
    assert (ended.out.count("\ndone "), ended.out.count("failed "), ended.out.count("diverged ")) == (1, 1, 1)


def test_a_sweep_writes_into_the_outputs_only(
    process: Callable[..., SimpleNamespace], tmp_path: Path, outputs: Path
) -> None:
    before = set(os.listdir())
    ended = process("runners.run", "-m", "method=toy/descent", "task=toy/bowl", "task.steps=3", "seed=0,1")
    assert ended.code == 0, ended.err
    assert set(os.listdir()) == before
    assert len(numbers(outputs)) == 2


def test_groups_and_added_keys_in_a_sweep(
    command: Command, conf: Callable[[str, str], Path], tmp_path: Path, outputs: Path
) -> None:
    conf(
        "task/toy/lettered.yaml",
        "defaults: [/data/letters@data: a, _self_]\n_target_: reprise_toy.tasks.Prepared\n"
        "interface: reprise_toy.interface.Method\n"
        "table: {_target_: reprise_toy.tasks.build_table, _artifact_: true, size: 2}\n",
    )
    for name in "ab":
        (tmp_path / name).write_text(name)
        text = f"_target_: reprise_toy.tasks.TextFile\npath: {tmp_path / name}\nfiles: {{{name}: null}}\n"
        conf(f"data/letters/{name}.yaml", text)
    single = command("runners.run", "method=toy/descent", "task=toy/lettered", "task.data=b")
    assert single.code == 0, single.err
    ended = command("runners.run", "-m", "method=toy/descent", "task=toy/lettered", "task.data=a,b")
    assert ended.code == 0, ended.err
    assert ended.out.count("done (stored)") == 1
    assert len(numbers(outputs)) == 2
