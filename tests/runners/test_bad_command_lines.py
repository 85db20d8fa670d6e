"""Command lines that are wrong: exit code 2, one line on stderr that names the place and the nearest valid name."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

RUN = "runners.run"
REPRODUCE = "runners.reproduce"
PAIR = ("method=toy/descent", "task=toy/bowl")
TOY = ("paper=toy", "scale=smoke")

# (module, arguments, what the line must hold)
CASES = [
    (RUN, ("method=toy/desent", "task=toy/bowl"), ("unknown method 'toy/desent'", "nearest: toy/descent")),
    (RUN, ("method=descent", "task=toy/bowl"), ("unknown method 'descent'", "nearest: toy/descent")),
    (RUN, ("method=toy/../toy/descent", "task=toy/bowl"), ("unknown method", "nearest: toy/descent")),
    (RUN, ("method=/etc/passwd", "task=toy/bowl"), ("unknown method '/etc/passwd'",)),
    (RUN, ("method=", "task=toy/bowl"), ("expected the name of a method",)),
    (RUN, ("method=toy/descent,toy/sign", "task=toy/bowl"), ("unknown method",)),
    (RUN, ("method=[]", "task=toy/bowl"), ("at least one method",)),
    (RUN, ("method=[toy/sign,toy/sign]", "task=toy/race"), ("each method once",)),
    (RUN, ("method=[toy/sign,toy/descnt]", "task=toy/race"), ("'toy/descnt'", "nearest: toy/descent")),
    (RUN, ("method={a: 1}", "task=toy/bowl"), ("unknown method",)),
    (RUN, ("method=toy/descent", "task=toy/bowls"), ("unknown task 'toy/bowls'", "nearest: toy/bowl")),
    (RUN, ("method=toy/descent", "task={_target_: os.system}"), ("unknown task",)),
    (RUN, ("method=toy/descent",), ("which task?",)),
    (RUN, ("task=toy/bowl",), ("which method?",)),
    (RUN, (), ("which method?",)),
    (RUN, (*PAIR, "sed=3"), ("unknown option 'sed'", "nearest: seed")),
    (RUN, (*PAIR, "Task.steps=3"), ("unknown option 'Task.steps'", "nearest: task.")),
    (RUN, (*PAIR, "seed"), ("'seed' is not of the form key=value",)),
    (RUN, (*PAIR, "=3"), ("not of the form key=value",)),
    (RUN, (*PAIR, "seed=three"), ("seed='three'", "a whole number")),
    (RUN, (*PAIR, "seed=0.5"), ("seed=0.5", "a whole number")),
    (RUN, (*PAIR, "seed="), ("seed=''", "a whole number")),
    (RUN, (*PAIR, "seed=true"), ("seed=True", "a whole number")),
    (RUN, (*PAIR, "seed=null"), ("seed=None", "a whole number")),
    (RUN, (*PAIR, "seed=inf"), ("seed=inf", "a whole number")),
    (RUN, (*PAIR, "seed=nan"), ("seed=nan", "a whole number")),
    (RUN, (*PAIR, "seed=1,2"), ("seed=1,2", "one value", "-m")),
    (RUN, (*PAIR, "seed=range(3)"), ("seed=range(3)", "one value", "-m")),
    (RUN, (*PAIR, "method.name=glob(*)"), ("method.name=glob(*)", "one value", "-m")),
    (RUN, (*PAIR, "method.lrr=0.1"), ("unknown key 'method.lrr' in method toy/descent", "nearest: method.lr")),
    (RUN, (*PAIR, "method.lr.x=0.1"), ("unknown key 'method.lr.x'", "nearest: method.lr")),
    (RUN, (*PAIR, "task.step=9"), ("unknown key 'task.step' in task toy/bowl", "nearest: task.steps")),
    (RUN, (*PAIR, "task.resources.hour=9"), ("unknown key", "nearest: hours")),
    (RUN, (*PAIR, "task.=9"), ("unknown key 'task.'",)),
    (RUN, (*PAIR, "+method.lrr=0.1"), ("method.lrr: Descent takes no argument 'lrr'", "nearest: lr")),
    (RUN, (*PAIR, "+method.lr.x=0.1"), ("unknown key 'method.lr.x'",)),
    (RUN, (*PAIR, "method._target_=os.system"), ("unknown key 'method._target_'",)),
    (RUN, (*PAIR, "+method._target_=os.system"), ("unknown key 'method._target_'",)),
    (RUN, (*PAIR, "task._name_=toy/duel"), ("unknown key 'task._name_'",)),
    (RUN, (*PAIR, "~method.lr=0.1"), ("unknown option '~method.lr'",)),
    (RUN, (*PAIR, "method.lr=fast"), ("method.lr='fast'", "a number", "0.1")),
    (RUN, (*PAIR, "method.lr='0.1'"), ("method.lr='0.1'", "a number")),
    (RUN, (*PAIR, "method.lr=true"), ("method.lr=True", "a number")),
    (RUN, (*PAIR, "method.lr=[0.1]"), ("method.lr=[0.1]", "a number")),
    (RUN, (*PAIR, "method.lr={a: 1}"), ("method.lr={'a': 1}", "a number")),
    (RUN, (*PAIR, "method.lr=[0.1"), ("method.lr=[0.1", "not a value")),
    (RUN, (*PAIR, "method.lr=${device}"), ("method.lr='cpu'", "a number")),
    (RUN, (*PAIR, "method.lr=${nowhere}"), ("nowhere",)),
    (RUN, (*PAIR, "task.steps=2.5"), ("task.steps=2.5", "a whole number")),
    (RUN, (*PAIR, "task.steps=inf"), ("task.steps=inf", "a whole number")),
    (RUN, (*PAIR, "task.steps=???"), ("task.steps",)),
    (RUN, (*PAIR, "task.resources=3"), ("task.resources=3", "a mapping")),
    (RUN, (*PAIR, "task.resources={hour: 3}"), ("unknown key", "hours")),
    (RUN, (*PAIR, "device=gpu"), ("error: device=gpu", "cpu", "nearest: cuda")),
    (RUN, (*PAIR, "device=cuda0"), ("device=cuda0", "nearest: cuda:0")),
    (RUN, (*PAIR, "task.resources.gpus=2"), ("task.resources.gpus=2", "add device=cuda")),
    (RUN, (*PAIR, "seed=-1"), ("seed=-1", "at least 0")),
    (RUN, ("metod=toy/descent", "task=toy/bowl"), ("unknown option 'metod'", "nearest: method")),
    (RUN, ("method=sign", "task=toy/bowl"), ("unknown method 'sign'", "nearest: toy/sign")),
    (RUN, ("method=radazo", "task=toy/bowl"), ("unknown method 'radazo'", "nearest: zeroth_order/radazo")),
    (RUN, (*PAIR, "device=cuda:x"), ("device=cuda:x", "cpu")),
    (RUN, (*PAIR, "device=3"), ("device=3", "a text")),
    (RUN, (*PAIR, "dtype=flaot32"), ("dtype=flaot32", "nearest: float32")),
    (RUN, (*PAIR, "dtype=int64"), ("dtype=int64", "float32")),
    (RUN, (*PAIR, "ranks=0"), ("ranks=0", "at least 1")),
    (RUN, (*PAIR, "ranks=1000"), ("ranks=1000", "cores")),
    (RUN, (*PAIR, "again=yes"), ("again=yes", "true, false")),
    (RUN, (*PAIR, "stale=keeep"), ("stale=keeep", "nearest: keep")),
    (RUN, (*PAIR, "tracker=wandbb"), ("unknown tracker 'wandbb'",)),
    (RUN, (*PAIR, "tracker.project=x"), ("unknown key 'tracker.project'",)),
    (RUN, (*PAIR, "launcher=locale"), ("unknown launcher 'locale'", "nearest: local")),
    (RUN, (*PAIR, "launcher.worker=2"), ("unknown key 'launcher.worker'", "nearest: launcher.workers")),
    (RUN, ("method=toy/descent", "task=toy/duel"), ("task.opponent", "???")),
    (RUN, ("method=toy/foreign", "task=toy/bowl"), ("toy/foreign", "toy/bowl", "interfaces differ")),
    (RUN, ("method=[toy/sign,toy/foreign]", "task=toy/race"), ("toy/foreign", "interfaces differ")),
    (RUN, ("id=0123456789abcdef0123",), ("no stored run with id 0123456789abcdef0123",)),
    (RUN, ("id=*",), ("id=*", "20 hexadecimal digits")),
    (RUN, ("id=../../..",), ("id=../../..", "20 hexadecimal digits")),
    (RUN, ("id=0123456789abcdef0123", "seed=3"), ("'seed' does not go with it",)),
    (RUN, ("paper=toi", "scale=smoke"), ("unknown paper 'toi'", "nearest: toy")),
    (REPRODUCE, (), ("which paper?",)),
    (REPRODUCE, ("toy",), ("'toy' is not of the form key=value",)),
    (REPRODUCE, ("paper=radadzo",), ("unknown paper 'radadzo'",)),
    (REPRODUCE, ("paper=../paper/toy",), ("unknown paper", "nearest: toy")),
    (REPRODUCE, ("paper=toy", "scale=smok"), ("scale=smok", "nearest: smoke")),
    (REPRODUCE, ("papr=toy",), ("unknown option 'papr'", "nearest: paper")),
    (REPRODUCE, (*TOY, "device=gpu"), ("error: device=gpu", "nearest: cuda")),
    (REPRODUCE, (*TOY, "seed=-1"), ("error: seed=-1", "at least 0")),
    (REPRODUCE, (*TOY, "scales=smoke"), ("unknown option 'scales'", "nearest: scale")),
    (REPRODUCE, (*TOY, "experiment=bowel"), ("unknown experiment 'bowel' of toy", "nearest: bowl")),
    (REPRODUCE, (*TOY, "experiment=bowl,dual"), ("unknown experiment 'dual' of toy",)),
    (REPRODUCE, (*TOY, "seeds=0"), ("seeds=0", "at least 1")),
    (REPRODUCE, (*TOY, "seeds=-3"), ("seeds=-3", "at least 1")),
    (REPRODUCE, (*TOY, "seeds=ten"), ("seeds=ten", "at least 1")),
    (REPRODUCE, (*TOY, "seeds=²"), ("seeds=²", "at least 1")),
    (REPRODUCE, (*TOY, "seeds=101"), ("tuned", "judged too")),
    (REPRODUCE, (*TOY, "launcher=slrum"), ("unknown launcher 'slrum'",)),
    (REPRODUCE, (*TOY, "launcher.worker=3"), ("unknown key 'launcher.worker'", "nearest: launcher.workers")),
    (REPRODUCE, (*TOY, "launcher.workers=two"), ("launcher.workers='two'", "whole number")),
    (REPRODUCE, (*TOY, "launcher.workers=-1"), ("launcher.workers=-1", "at least 1")),
    (REPRODUCE, (*TOY, "launcher.workers=0"), ("launcher.workers=0", "at least 1")),
    (REPRODUCE, (*TOY, "launcher.memory_gb=lots"), ("launcher.memory_gb='lots'", "number")),
    (REPRODUCE, (*TOY, "launcher.per_gpu=0"), ("launcher.per_gpu=0", "at least 1")),
    (REPRODUCE, (*TOY, "launcher._target_=os.system"), ("unknown key 'launcher._target_'",)),
    (REPRODUCE, (*TOY, "tracker=none", "tracker.x=1"), ("unknown key 'tracker.x'",)),
    (REPRODUCE, (*TOY, "publish=maybe"), ("publish=maybe", "true, false")),
    (REPRODUCE, (*TOY, "publish=true", "method.lr=0.1"), ("publish=true takes no overrides",)),
    (REPRODUCE, (*TOY, "publish=true", "task=toy/bowl"), ("publish=true takes no overrides",)),
    (REPRODUCE, (*TOY, "publish=true", "dtype=float64"), ("publish=true takes no overrides",)),
    (REPRODUCE, (*TOY, "publish=true", "experiment=bowl"), ("publish=true", "experiment")),
    (REPRODUCE, (*TOY, "fail_fast=1"), ("fail_fast=1", "true, false")),
    (REPRODUCE, (*TOY, "stale=kept"), ("stale=kept", "nearest: keep")),
    (REPRODUCE, (*TOY, "method=toy/descant"), ("unknown method 'toy/descant'", "nearest: toy/descent")),
    (REPRODUCE, (*TOY, "task=tuy/*"), ("unknown task 'tuy/*'",)),
    (REPRODUCE, (*TOY, "method=toy/bad"), ("method=toy/bad", "no cell")),
    (REPRODUCE, (*TOY, "experiment=bowl", "task=toy/race"), ("task=toy/race", "no cell")),
    (REPRODUCE, (*TOY, "method.lrr=0.1"), ("unknown key 'method.lrr'", "nearest: method.lr")),
    (REPRODUCE, (*TOY, "task.step=3"), ("unknown key 'task.step'", "nearest: task.steps")),
    (REPRODUCE, (*TOY, "task.steps=few"), ("task.steps='few'", "a whole number")),
    (REPRODUCE, (*TOY, "task.steps=1,2"), ("task.steps=1,2", "one value")),
    (REPRODUCE, (*TOY, "device=tpu"), ("device=tpu", "cpu")),
    ("runners.list", ("paperz",), ("unknown list 'paperz'", "nearest: papers")),
    ("runners.list", ("methods", "tasks"), ("unknown list 'methods tasks'",)),
    ("runners.list", ("methods", "kind=toi"), ("unknown kind 'toi'", "nearest: toy")),
    ("runners.list", ("methods", "knd=toy"), ("unknown option 'knd'", "nearest: kind")),
    ("runners.show", ("paper=tiy",), ("unknown paper 'tiy'", "nearest: toy")),
    ("runners.show", (), ("which paper?",)),
    ("runners.show", ("papper=toy",), ("unknown option 'papper'", "nearest: paper")),
    ("runners.verify", ("papper=toy",), ("unknown option 'papper'", "nearest: paper")),
    ("runners.show", ("paper=toy", "papper=x"), ("unknown option 'papper'", "nearest: paper")),
    ("runners.fetch", ("paper=tiy",), ("unknown paper 'tiy'", "nearest: toy")),
    ("runners.fetch", (), ("which paper?",)),
    ("runners.fetch", ("paper=toy", "scal=smoke"), ("unknown option 'scal'", "nearest: scale")),
    ("runners.fetch", ("paper=toy", "scale=big"), ("scale=big", "smoke, laptop, paper")),
    ("runners.verify", ("paper=tiy",), ("unknown paper 'tiy'", "nearest: toy")),
    ("runners.verify", ("paper=toy", "seed=3"), ("unknown option 'seed'",)),
    ("runners.verify", ("paper=toy", "scale=smoke"), ("no stored runs at scale smoke",)),
]  # fmt: skip

SWEEPS = [
    (("method=toy/desent", "task=toy/bowl"), ("unknown method 'toy/desent'", "nearest: toy/descent")),
    (("method=toy/descent", "task=toy/bowl,toy/bowll"), ("unknown task 'toy/bowll'", "nearest: toy/bowl")),
    (("method=toy/descent",), ("which task?",)),
    ((*PAIR, "method.lrr=0.1,0.2"), ("unknown key 'method.lrr'", "nearest: method.lr")),
    ((*PAIR, "method.lr=0.1,fast"), ("method.lr='fast'", "a number")),
    ((*PAIR, "seed=range(0,3"), ("seed=range(0,3", "not a value")),
    ((*PAIR, "sed=1,2"), ("unknown option 'sed'", "nearest: seed")),
    (("method=toy/foreign", "task=toy/bowl"), ("interfaces differ",)),
]


def one_line(ended: SimpleNamespace, *expected: str) -> None:
    """Exit code 2 and a single line that holds all of ``expected``."""
    assert ended.code == 2, ended
    lines = ended.err.splitlines()
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("error: ")
    assert len(lines[0]) < 600, lines[0]
    for part in expected:
        assert part in lines[0], (part, lines[0])
    for noise in ("Traceback", "file://", "<class", "QuotedString", "ChoiceSweep"):
        assert noise not in lines[0]


@pytest.mark.parametrize(
    ("module", "arguments", "expected"), CASES, ids=[f"{m[8:]} {' '.join(a)}" for m, a, _ in CASES]
)
def test_one_clear_line(
    command: Callable[..., SimpleNamespace],
    module: str,
    arguments: tuple[str, ...],
    expected: tuple[str, ...],
) -> None:
    one_line(command(module, *arguments), *expected)


@pytest.mark.parametrize(("arguments", "expected"), SWEEPS, ids=[" ".join(a) for a, _ in SWEEPS])
def test_hydra_sweeps_say_it_as_clearly(
    command: Callable[..., SimpleNamespace], arguments: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    one_line(command(RUN, "-m", *arguments), *expected)


@pytest.mark.parametrize(
    "case",
    [CASES[0], next(case for case in CASES if case[0] == REPRODUCE and case[1])],
    ids=["run", "reproduce"],
)
def test_the_same_in_a_process_of_its_own(process: Callable[..., SimpleNamespace], case: tuple) -> None:
    module, arguments, expected = case
    one_line(process(module, *arguments), *expected)
