"""Runs that differ in their seed share parts of their configs; ids and configs are as if each stood alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners import identity
from runners.compose import compose_run
from runners.expand import Expander
from runners.paper import Paper

SEEDED = """
_target_: reprise_toy.tasks.Bowl
interface: reprise_toy.interface.Method
steps: {steps}
noise: 0.1
"""


def cells(task: str, **more):
    grid = {"method": ["toy/descent", "toy/sign"], "task": task, "task.noise": [0.1, 0.2], "seed": "range(5)"}
    paper = Paper("shared", {"experiments": {"one": {"asks": "?", "grid": grid} | more}})
    return Expander(paper, "laptop").judged("one")


def alone(cell):
    """The same run, composed by itself."""
    leaves = [(key, value, "") for key, value in cell.coordinates.items() if key not in ("method", "task")]
    leaves += [(key, value, "") for source in cell.sources for key, value in source["set"].items()]
    return compose_run(cell.coordinates["method"], cell.coordinates["task"], lambda _: leaves)


SETTINGS = [{"when": {"method": "toy/sign", "seed": 3}, "set": {"method.lr": 0.3}, "source": "assumed"}]


@pytest.mark.parametrize("more", [{}, {"settings": SETTINGS}])
def test_configs_and_ids_are_those_of_runs_composed_alone(more):
    found = cells("toy/bowl", **more)
    assert len({cell.id for cell in found}) == 20
    for cell in found:
        assert cell.config == alone(cell)
        assert cell.id == identity.run_id(cell.config)
    parts = {id(cell.config["task"]) for cell in found}
    assert len(parts) < len(found)  # they are shared


def test_a_config_that_depends_on_its_seed_is_not_shared(conf):
    conf("task/toy/seeded.yaml", SEEDED.format(steps="${seed}"))
    for cell in cells("toy/seeded"):
        assert cell.config["task"]["steps"] == cell.coordinates["seed"]
        assert cell.config == alone(cell)
        assert cell.id == identity.run_id(cell.config)


@given(st.integers(-(2**40), 2**40), st.text(max_size=5), st.sampled_from(["seed", '"seed"', "\\u0000seed"]))
def test_ids_by_seed(seed, name, key):
    config = {
        "method": {"_name_": name, "lr": 0.1},
        "task": {"_name_": "a/b", "seed": 3, "x": [key]},
        "seed": 7,
    }
    assert identity.id_by_seed(config)(seed) == identity.run_id(config | {"seed": seed})
