"""The paper gs_poweropt: its YAML against the official settings, and the smoke run."""

import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from runners import figure_spec
from runners.claims import validate
from runners.expand import Expander
from runners.paper import Paper

HOME = Path(__file__).resolve().parents[2]
SMOOTHING = ("std_homotopy", "slgh_d", "slgh_r", "zo_adamm_decaying", "zo_sgd_decaying")


@cache
def cells(experiment, scale):
    return Expander(Paper("gs_poweropt"), scale).judged(experiment)


def found(experiment, scale="laptop", **coordinates):
    """Configs of the cells with these coordinates, the method's and the task's last name."""
    return [
        cell.config
        for cell in cells(experiment, scale)
        if all(str(cell.coordinates[key]).rsplit("/", 1)[-1] == value for key, value in coordinates.items())
    ]


@cache
def tuning(experiment):
    grids = {}
    for cell, candidate, rule in Expander(Paper("gs_poweropt"), "laptop").tuning(experiment):
        key = tuple(str(cell.coordinates[name]).rsplit("/", 1)[-1] for name in ("method", "task"))
        grids.setdefault(key, []).append(candidate)
        assert rule["seeds"] == ([1] if experiment.startswith("attack") else [100])
    return grids


def test_claims_and_figures_are_well_formed():
    paper = Paper("gs_poweropt")
    validate(paper.claims | paper.findings, paper.experiments)
    for name, figure in paper.figures.items():
        figure_spec.check(name, figure, paper.experiments)


@pytest.mark.parametrize(
    ("task", "n_samples", "steps", "sizes"),
    [
        (
            "global_ackley",
            10,
            200,
            {
                "epgs": 18,
                "pgs": 24,
                "std_homotopy": 18,
                "slgh_d": 36,
                "slgh_r": 12,
                "zo_adamm_decaying": 54,
                "zo_sgd_decaying": 6,
            },
        ),
        (
            "global_rosenbrock",
            100,
            1000,
            {
                "epgs": 30,
                "pgs": 30,
                "std_homotopy": 30,
                "slgh_d": 90,
                "slgh_r": 30,
                "zo_adamm_decaying": 40,
                "zo_sgd_decaying": 10,
            },
        ),
    ],
)
def test_tables_have_the_official_settings_and_grids(task, n_samples, steps, sizes):
    for scale, repeats in (("laptop", 20), ("paper", 100)):
        configs = found("tables", scale, task=task)
        assert len(configs) == 9
        for config in configs:
            assert config["method"]["n_samples"] == n_samples
            assert (config["task"]["steps"], config["task"]["repeats"], config["task"]["dim"]) == (
                steps,
                repeats,
                2,
            )
    assert {method: len(grid) for (method, where), grid in tuning("tables").items() if where == task} == {
        **sizes,
        "cma_es": 3,
        "pso": 3,
    }


def test_fine_grids_hold_the_official_ones():
    for key, grid in tuning("tables").items():
        if key[0] in ("cma_es", "pso"):
            continue
        finer = tuning("fine_grid")[key]
        assert all(candidate in finer for candidate in grid)
        assert len({candidate["method.lr"] for candidate in finer}) == 7


def test_schedules_of_the_official_routines():
    (epgs,) = found("tables", method="epgs", task="global_ackley")
    (pgs,) = found("tables", method="pgs", task="global_rosenbrock")
    (std,) = found("tables", method="std_homotopy", task="global_rosenbrock")
    (adamm,) = found("tables", method="zo_adamm_decaying", task="global_ackley")
    assert (epgs["method"]["decay_steps"], epgs["method"]["sigma_is_variance"]) == (1000, False)
    assert (pgs["method"]["decay_steps"], pgs["method"]["sigma_is_variance"]) == (5000, True)
    assert (pgs["method"]["shift"], pgs["method"]["nonpositive"]) == (12000, "power")
    assert (std["method"]["decay_steps"], std["method"]["shift"]) == (500, 0)
    assert adamm["method"]["amsgrad"]
    assert adamm["method"]["direction"] == "radial"
    for method in ("pgs", "std_homotopy"):
        (config,) = found("tables", method=method, task="global_ackley")
        assert config["method"]["shift"] == pytest.approx(20 + math.e, abs=1e-14)
    assert all(config["method"]["decay_steps"] is None for config in found("attack", method="epgs"))


def test_the_slip_is_looked_at_where_it_matters():
    for config in found("slip"):
        assert config["method"]["sigma"] == 2
    assert {len(grid) for grid in tuning("slip").values()} == {8 * 2, 15 * 2}  # of both readings


def test_five_dimensions_take_more_draws():
    for method, draws in (("epgs", 2000), ("pgs", 1000)):
        configs = found("power_5d", "paper", method=method)
        assert len(configs) == 8
        for config in configs:
            assert (config["method"]["n_samples"], config["task"]["steps"]) == (draws, 1000)
            assert (config["task"]["dim"], config["task"]["repeats"]) == (5, 100)


def test_selections_share_their_tuning_runs():
    """Three ways to choose an iterate, one set of searches."""
    ids = [
        {cell.id for cell, _, _ in Expander(Paper("gs_poweropt"), "paper").tuning(name)}
        for name in ("tables", "tables_last", "tables_best")
    ]
    assert ids[0] == ids[1] == ids[2]
    rules = [
        Expander(Paper("gs_poweropt"), "paper").tuning(f"tables_{name}")[0][2] for name in ("last", "best")
    ]
    assert [rule["metric"] for rule in rules] == ["last_mse", "best_mse"]


def test_tuned_images_and_judged_images_differ():
    for scale, experiment in (("laptop", "attack"), ("paper", "attack_mnist")):
        for config in found(experiment, scale):
            assert config["seed"] == 0
            assert config["task"]["images"] * 2 <= (360 if scale == "laptop" else 10_000)
    sizes = {len(grid) for grid in tuning("attack").values()}
    assert sizes == {4}  # the same budget for each


def test_the_attack_with_the_official_learning_rates():
    rates = {"epgs": 0.1, "std_homotopy": 0.5, "slgh_d": 1e-4, "slgh_r": 1e-4}
    rates |= {"zo_adamm_decaying": 0.1, "zo_sgd_decaying": 1e-4}
    for method, rate in rates.items():
        (config,) = found("attack_official", method=method)
        assert config["method"]["lr"] == rate
        assert (config["task"]["images"], config["seed"]) == (40, 0)


def test_the_wider_tuning_of_the_attack_holds_the_narrow_one_of_all_others():
    narrow, wide = tuning("attack"), tuning("attack_wide")
    for (method, _), grid in wide.items():
        if method == "epgs":
            assert len(grid) == 12
        else:
            assert grid == narrow[method, "distortion_digits"]


def test_eta_is_a_tenth_over_the_dimension():
    for scale, experiment, d in (("laptop", "attack", 64), ("paper", "attack_mnist", 784)):
        (config,) = found(experiment, scale, method="slgh_d")
        assert config["method"]["eta"] == pytest.approx(0.1 / d)


def test_every_smoothing_baseline_is_judged():
    paper = Paper("gs_poweropt")
    for name, claim in (paper.claims | paper.findings).items():
        statistic = next(iter((claim.get("statistic") or {"": {}}).values()))
        arms = statistic.get("of") if isinstance(statistic, dict) else None
        if isinstance(arms, list) and "zeroth_order/zo_sgd_decaying" in arms:
            assert arms == [f"zeroth_order/{method}" for method in SMOOTHING], name


def test_the_paper_scale_composes_and_tells_its_cost(tmp_path):
    done = reproduce(tmp_path, "scale=paper", "dry_run=true")
    assert done.returncode == 0, done.stderr
    for line in ("tables: ", "power_5d: 16 runs", "attack_mnist: ", "attack_cifar10: not run (its network"):
        assert line in done.stderr


def test_smoke(tmp_path):
    done = reproduce(tmp_path, "scale=smoke", "launcher.workers=1")
    assert done.returncode == 0, done.stderr
    report = tmp_path / "report/gs_poweropt/smoke"
    verdicts = json.loads((report / "verdicts.json").read_text())
    assert {name: e["runs"] for name, e in verdicts["experiments"].items() if e["runs"]} == {
        "surrogate": 6,
        "estimator": 1,
        "tables": 9,
        "attack": 3,
    }
    claims = {claim["id"]: claim for claim in verdicts["claims"] + verdicts["findings"]}
    for name in ("C1_moves_monotonically", "C1_arrives", "C6_unbiased", "C6_rate"):
        assert claims[name]["verdict"] == "reproduced", name
    assert claims["C3_epgs_ackley"]["verdict"] == "shown"
    assert (report / "figures/surrogates.svg").is_file()
    assert (report / "figures/landscapes.svg").stat().st_size < 100_000


def reproduce(outputs, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "runners.reproduce", "paper=gs_poweropt", *arguments],
        cwd=HOME,
        env=os.environ | {"REPRISE_OUTPUTS": str(outputs), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
