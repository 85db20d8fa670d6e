"""Landscapes, the examination of hitting times, and its measures."""

import functools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from methods.minimize.gradient_noise import Gaussian, Minibatch
from methods.minimize.sgd_time import MinibatchSGD, NoisySGD
from tasks.minimize.convergence_time import ConvergenceTime
from tasks.minimize.landscapes import Ball, Beyond, Camel, DoubleWell, PhaseRetrieval, Ridge, Wells
from tasks.minimize.time_measures import jackknife_cv, lilliefors, rate
from tests.fake_run import FakeRun

LANDSCAPES = {
    "camel": Camel(),
    "double_well": DoubleWell(0.1),
    "deep": Wells([0, 0.5, -1, 0, -1.5]),
    "high": Wells([0, 1.5, 1.25, 1.75, -0.5], scale=0.5),
    "ridge": Ridge(),
    "phase": PhaseRetrieval(12, 1.0, 1),
}


def points(landscape, n=40):
    low, high = np.array(landscape.box).T
    return np.random.default_rng(0).uniform(low, high, (n, len(low)))


@pytest.mark.parametrize("name", LANDSCAPES)
def test_gradients_and_hessians_are_derivatives(name):
    landscape, h = LANDSCAPES[name], 1e-5
    x = points(landscape)
    gradient = landscape.gradient(x)
    assert gradient.shape == x.shape
    for k, e in enumerate(np.eye(x.shape[1])):
        difference = (landscape.value(x + h * e) - landscape.value(x - h * e)) / (2 * h)
        assert gradient[:, k] == pytest.approx(difference, rel=1e-5, abs=1e-5)
        if landscape.hessian is not None:
            difference = (landscape.gradient(x + h * e) - landscape.gradient(x - h * e)) / (2 * h)
            assert landscape.hessian(x)[:, :, k] == pytest.approx(difference, rel=1e-5, abs=1e-5)
    assert landscape.gradient(np.asfortranarray(x)) == pytest.approx(gradient, rel=1e-14)


def test_wells_have_their_heights_and_slopes():
    wells = Wells([0, 0.5, -1, 0, -1.5])
    places = np.arange(-2.0, 3.0)[:, None]
    assert wells.value(places) == pytest.approx([0, 0.5, -1, 0, -1.5])
    assert wells.gradient(places)[:, 0] == pytest.approx(np.zeros(5), abs=1e-15)
    assert wells.gradient(np.array([[-2.5], [2.5]]))[:, 0] == pytest.approx([-6 * 0.5 * 0.5, 6 * 1.5 * 0.5])
    assert Wells([0, 0.5, -1, 0, -1.5], scale=0.5).value(places)[2] == -0.5
    with pytest.raises(ValueError, match="minima and maxima in turn"):
        Wells([0, 0.5, 1, 0, -1.5])


def test_component_gradients_average_to_the_gradient():
    phase = LANDSCAPES["phase"]
    x = points(phase, 5)
    each = [phase.component_gradients(x, np.full((5, 1), k)) for k in range(phase.components)]
    assert np.mean(each, axis=0) == pytest.approx(phase.gradient(x))
    noise = Minibatch(phase.component_gradients, phase.gradient, phase.components)
    assert noise.at(x, np.full((5, 1), 3)) == pytest.approx(each[3] - phase.gradient(x))


def test_regions():
    x = np.array([[0.1, 0.1], [0.3, 0.0], [-0.9, 0.0]])
    assert Ball([0, 0], 0.3)(x).tolist() == [True, False, False]
    assert Beyond(0.2)(x).tolist() == [False, True, False]
    assert Beyond(0.2, both_sides=True)(x).tolist() == [False, True, True]
    assert Ball([0, 0], 0.3)(x.reshape(3, 1, 2)).shape == (3, 1)


@pytest.mark.parametrize(
    ("name", "start", "target", "exponent", "path"),
    [
        ("camel", [-1.747552, 0.873776], Ball([0, 0], 0.3), 1.157446, 1.157446),
        ("camel", [0.5, -0.25], Ball([0, 0], 0.3), 0, 0),
        ("camel", [0.0, 0.0], Ball([1.747552, -0.873776], 0.3), 1.754723, 1.754723),
        ("double_well", [-0.945649], Beyond(0.846681), 2 * 0.157665, 2 * 0.157665),
        ("deep", [-2.0], Beyond(1.8), 2, 3),
        ("high", [-2.0], Beyond(1.8), 1.75, 2),
        ("ridge", [0.0, 0.0], Beyond(0.8, both_sides=True), 0, 0),
    ],
)
def test_exponents_of_the_landscapes(name, start, target, exponent, path):
    forecast = NoisySGD(Gaussian(1.0)).forecast(LANDSCAPES[name], np.array(start), target)
    assert forecast.exponent == pytest.approx(exponent, abs=1e-5)
    assert forecast.variance_exponent == pytest.approx(exponent, abs=1e-5)
    assert forecast.path_exponent == pytest.approx(path, abs=1e-5)


def test_a_target_without_a_basin_is_one_clear_error():
    for target in (Ball([0.8, 0.0], 0.1), Beyond(10.0)):
        task = ConvergenceTime(Camel(), [-1.747552, 0.873776], target, runs=20, levels=[2.0])
        with pytest.raises(ValueError, match="the target has no basin: no minimum"):
            task.evaluate(functools.partial(NoisySGD, Gaussian(4.4)), FakeRun())


def camel_task(**options):
    return ConvergenceTime(
        Camel(), [-1.747552, 0.873776], Ball([0, 0], 0.3), **{"runs": 40, "levels": [1.5, 2.0], **options}
    )


def test_the_examination_records_times_blocks_and_the_fit():
    run = FakeRun()
    camel_task().evaluate(functools.partial(NoisySGD, Gaussian(6.2)), run)
    hits, blocks, levels = (run.tables[name] for name in ("hit", "block", "level"))
    assert (len(hits), len(blocks), len(levels)) == (80, 40, 2)
    assert sorted(set(hits["barrier"])) == [1.5, 2.0]
    exponent = 1.157446 / 6.2**2
    assert run.summaries["exponent"] == pytest.approx(exponent, rel=1e-5)
    assert run.summaries["prefactor"] == pytest.approx(0.95304, abs=1e-5)
    eta = exponent / 2
    last = hits[hits["barrier"] == 2.0]
    assert last["scaled"].to_numpy() == pytest.approx(eta * last["steps"].to_numpy(), rel=1e-5)
    kramers = 0.95304 / eta * math.exp(2)
    assert last["kramers_ratio"].to_numpy() == pytest.approx(last["steps"].to_numpy() / kramers, rel=1e-4)
    assert last["cv_value"].mean() == pytest.approx(last["steps"].std() / last["steps"].mean(), rel=0.1)
    means = [frame["mean"].mean() for _, frame in blocks.groupby("barrier")]
    assert means == pytest.approx([frame["steps"].mean() for _, frame in hits.groupby("barrier")])
    assert run.curve["mean"].to_numpy() == pytest.approx(means)
    slope = (math.log(eta * means[1]) - math.log(eta / 0.75 * means[0])) / (1 / eta - 0.75 / eta)
    assert run.summaries["fitted"] == pytest.approx(slope, rel=1e-4)
    assert run.summaries["fitted_ratio"] == pytest.approx(slope / exponent, rel=1e-4)
    assert run.summaries["reached"] == 1
    assert run.summaries["diverged"] == 0
    assert {f"E={row.barrier}": 0 < row.ks_p <= 1 for row in levels.itertuples()} == {
        "E=1.5": True,
        "E=2.0": True,
    }


def test_an_interrupted_examination_goes_on_to_the_same_numbers():
    whole, method = FakeRun(), functools.partial(NoisySGD, Gaussian(6.2))
    camel_task().evaluate(method, whole)
    part = FakeRun()
    part.always_due, part.stop_after = True, 1
    with pytest.raises(KeyboardInterrupt):
        camel_task().evaluate(method, part)
    part.stop_after = None
    camel_task().evaluate(method, part)
    assert part.summaries == whole.summaries
    assert part.metrics == whole.metrics
    assert part.tables["hit"].equals(whole.tables["hit"])


def test_runs_that_never_arrive_have_no_time():
    run = FakeRun()
    task = camel_task(levels=[], etas=[0.01], max_steps=50)
    task.evaluate(functools.partial(NoisySGD, Gaussian(0.0)), run)
    assert run.summaries["reached"] == 0
    assert run.summaries["exponent"] is None
    assert run.tables["hit"]["steps"].isna().all()
    assert run.tables["block"]["mean"].isna().all()
    assert run.metrics == []


def test_minibatch_noise_has_no_exponent():
    run = FakeRun()
    task = ConvergenceTime(
        PhaseRetrieval(12, 1.0, 1), [-1.21, -0.07], Ball([1.21, 0.07], 0.3), runs=20, etas=[0.13, 0.12]
    )
    task.evaluate(MinibatchSGD, run)
    assert run.summaries["exponent"] is None
    assert run.summaries["fitted_ratio"] is None
    assert run.summaries["fitted"] is not None
    assert run.summaries["reached"] > 0.8
    with pytest.raises(ValueError, match="need an exponent"):
        ConvergenceTime(
            PhaseRetrieval(12, 1.0, 1), [-1.21, -0.07], Ball([1.21, 0.07], 0.3), runs=20, levels=[2.0]
        ).evaluate(MinibatchSGD, FakeRun())


def test_wrong_arguments():
    with pytest.raises(ValueError, match="either levels or etas"):
        camel_task(etas=[0.1])
    with pytest.raises(ValueError, match="either levels or etas"):
        camel_task(levels=[])
    with pytest.raises(ValueError, match="a multiple of blocks=20"):
        camel_task(runs=30)
    with pytest.raises(ValueError, match="tilt"):
        DoubleWell(0.5)


# -- measures ----------------------------------------------------------------------------------------------------------


def test_rate_is_a_slope_of_logarithms():
    frame = pd.DataFrame(
        {"inverse": [1.0, 2.0, 4.0], "scaled": np.exp([0.5, 1.0, 2.0]), "mean": [1.0, 1.0, 1.0]}
    )
    assert rate(frame) == pytest.approx(0.5)
    assert rate(frame, y="mean") == pytest.approx(0)
    frame.loc[1, "scaled"] = None
    assert math.isnan(rate(frame))


def test_jackknife_values_leave_one_out():
    times = np.random.default_rng(0).exponential(size=12)

    def cv(x):
        return x.std(ddof=1) / x.mean()

    slow = [12 * cv(times) - 11 * cv(np.delete(times, i)) for i in range(12)]
    assert jackknife_cv(times)[0] == pytest.approx(cv(times))
    assert jackknife_cv(times)[1] == pytest.approx(slow)
    assert jackknife_cv(times[:2])[0] is None


def test_jackknife_intervals_cover_the_coefficient_of_variation():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(300):
        values = jackknife_cv(rng.exponential(size=1000))[1]
        half = stats.t.ppf(0.975, 999) * values.std(ddof=1) / math.sqrt(1000)
        covered += abs(values.mean() - 1) < half
    assert covered / 300 > 0.9


def test_lilliefors_knows_an_exponential_law_from_others():
    rng = np.random.default_rng(0)
    p = [lilliefors(rng.exponential(scale=7.0, size=100), np.random.default_rng(k))[1] for k in range(20)]
    assert 0.2 < np.mean(p) < 0.8
    assert lilliefors(rng.gamma(3.0, size=200), np.random.default_rng(0))[1] < 0.01
    own = stats.kstest(x := rng.exponential(size=50), "expon", args=(0, x.mean())).statistic
    assert lilliefors(x, np.random.default_rng(0))[0] == pytest.approx(own)
