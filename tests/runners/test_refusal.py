"""A value that a constructor refuses is bad input: one line that names the key, exit code 2."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reprise_toy.methods import Careful

from runners.refusal import refusal

Command = Callable[..., SimpleNamespace]
CAREFUL = "_target_: reprise_toy.methods.Careful\n_partial_: true\ninterface: reprise_toy.interface.Method\nlr: 0.1\n"
PAPER = """
title: Careful
experiments:
  one: {asks: Does it go down?, grid: {method: [toy/careful, toy/OTHER], task: toy/bowl, seed: range(3)}}
"""
LINE = "method.lr=-1.0: expected a number above 0"


def caught(call: Callable[[], Any]) -> BaseException:
    """What a call raises."""
    with pytest.raises(BaseException) as info:
        call()
    return info.value


def config(target: str, **values: Any) -> dict[str, Any]:
    """A run's config, as far as it matters here."""
    return {"method": {"_target_": target, "_name_": "toy/it", **values}, "task": {"_name_": "toy/bowl"}}


def test_the_key_is_named() -> None:
    ours = config("reprise_toy.methods.Careful", lr=-1.0)
    assert refusal(caught(lambda: Careful(lr=-1.0)), ours) == LINE
    theirs = config("torch.optim.SGD", momentum=0.9, lr=-1.0)
    weights = [torch.nn.Parameter(torch.zeros(1))]
    problem = caught(lambda: torch.optim.SGD(weights, lr=-1.0, momentum=0.9))
    assert refusal(problem, theirs) == "method.lr=-1.0: Invalid learning rate: -1.0"
    empty = caught(lambda: torch.optim.SGD([], lr=0.1))
    assert refusal(empty, theirs) == "method toy/it: optimizer got an empty parameter list"


def test_what_is_no_refusal() -> None:
    ours = config("reprise_toy.methods.Careful", lr=-1.0)
    assert refusal(caught(lambda: int("x")), ours) is None
    assert refusal(caught(lambda: Careful(-1.0)), config("torch.optim.SGD", lr=-1.0)) is None
    assert refusal(caught(lambda: Careful().move(1.0, "steep")), ours) is None  # type: ignore[arg-type]


def test_a_run(command: Command, conf: Callable[[str, str], Path]) -> None:
    conf("method/toy/careful.yaml", CAREFUL)
    run = ("runners.run", "method=toy/careful", "task=toy/bowl")
    ended = command(*run, "method.lr=-1")
    assert (ended.code, ended.out, ended.err) == (2, "", f"error: {LINE}\n")
    assert command(*run).code == 0
    swept = command("runners.run", "-m", *run[1:], "method.lr=-1,0.2")  # the others run all the same
    assert (swept.code, swept.err.count(LINE), swept.out.count("done ")) == (2, 1, 1)


@pytest.mark.parametrize(("other", "code"), [("sign", 2), ("bad", 1)])
def test_a_paper(command: Command, conf: Callable[[str, str], Path], other: str, code: int) -> None:
    """Where other runs failed by themselves, the exit code is theirs."""
    conf("method/toy/careful.yaml", CAREFUL)
    conf("paper/careful.yaml", PAPER.replace("OTHER", other))
    ended = command("runners.reproduce", "paper=careful", "scale=smoke", "method.lr=-1", "launcher.workers=1")
    assert ended.code == code
    if code == 2:
        assert ended.err.splitlines()[-1] == f"error: {LINE} (3 runs)"
        assert ended.err.count(LINE) == 2  # as the first one happens, and at the end
    else:
        assert "6 runs failed:" in ended.err
        assert LINE in ended.err
