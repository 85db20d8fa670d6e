"""Tasks of sparse constrained problems, against independent computations."""

import functools
import importlib.util
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.optimize import minimize as scipy_minimize

from methods.minimize.two_step_iht import hsg_ht_2sp, hzo_ht_2sp, iht_2sp, two_step
from methods.minimize.two_step_iht.baselines import iht_exact
from methods.minimize.two_step_iht.sets import Box, GroupBudget, L1Ball, L2Ball, WeightedL1Ball
from tasks.data.resolve import MissingData
from tasks.data.sp500 import SP500
from tasks.minimize.index_tracking import IndexTracking, best_subset
from tasks.minimize.projection_cost import ProjectionCost
from tasks.minimize.sparse import Regressions, best_on_support, top
from tasks.minimize.sparse_regression import SparseRegression
from tasks.minimize.sparse_softmax import Softmax
from tasks.minimize.three_point import ThreePoint
from tests.fake_run import FakeRun

SMALL = {
    "rows": 60,
    "dim": 20,
    "support": 3,
    "k": 8,
    "constraint": L1Ball,
    "reference": iht_2sp,
    "repeats": 4,
}


def problems(seed=0, replicates=3, rows=30, dim=6):
    rng = np.random.default_rng(seed)
    return Regressions(rng.standard_normal((replicates, rows, dim)), rng.standard_normal((replicates, rows)))


def test_values_gradients_and_their_price():
    problem, rng = problems(), np.random.default_rng(1)
    w, other = rng.standard_normal((2, 3, 6))
    batch = np.stack([rng.permutation(30) for _ in range(3)])
    assert problem.batch_gradient(w, batch) == pytest.approx(problem.gradient(w))
    assert problem.values(w[:, None])[:, 0] == pytest.approx(problem.value(w))
    assert problem.difference(w, other) == pytest.approx(problem.value(w) - problem.value(other))
    assert problem.paid == 30 + 30 + 1
    slope = (problem.value(w + 1e-6 * other) - problem.value(w - 1e-6 * other)) / 2e-6
    assert (problem.slope(w) * other).sum(-1) == pytest.approx(slope, rel=1e-6)


def test_more_columns_than_rows():
    wide = problems(rows=5, dim=9)
    assert wide.gram is None
    gram = wide.A.transpose(0, 2, 1) @ wide.A / 5
    assert wide.smoothness[:, 0] == pytest.approx(np.linalg.eigvalsh(gram)[:, -1])
    assert wide.slope(np.ones((3, 9))) == pytest.approx(gram.sum(-1) - wide.moment)


def test_the_distance_to_the_best_of_its_own_support():
    problem = problems()
    supports = np.array([[0, 2], [1, 5], [3, 4]])
    best = problem.best(supports, None)
    assert problem.above_own_best(best) == pytest.approx(0, abs=1e-12)
    assert problem.above_own_best(1.5 * best) == pytest.approx(
        problem.value(1.5 * best) - problem.value(best)
    )


@pytest.mark.parametrize("ball", [None, L1Ball(0.2), L2Ball(0.1), WeightedL1Ball([1, 2, 1, 3, 1, 1], 0.2)])
def test_the_best_point_of_a_support(ball):
    problem = problems()
    supports = np.array([[0, 2], [1, 5], [3, 4]])
    found = problem.best(supports, ball)
    for i, support in enumerate(supports):
        gram, moment = problem.gram[i][np.ix_(support, support)], problem.moment[i][support]

        def value(part, gram=gram, moment=moment):
            return 0.5 * part @ gram @ part - moment @ part

        def room(part, support=support):
            whole = np.zeros(6)
            whole[support] = part
            return 1.0 if ball is None else float(ball.radius - ball.gauge(whole))

        best = min(
            scipy_minimize(
                value,
                start,
                method="SLSQP",
                constraints={"type": "ineq", "fun": room},
                options={"ftol": 1e-14},
            ).fun
            for start in ([0.01, 0.01], [-0.01, 0.02])
        )
        assert value(found[i][support]) == pytest.approx(best, abs=1e-7)
        assert (found[i] != 0).sum() <= 2
        assert room(found[i][support]) >= -1e-12


def test_the_search_for_the_best_subset_is_exhaustive():
    problem = problems(2, replicates=1)
    gram, moment = problem.gram[0], problem.moment[0]
    for ball in (None, L1Ball(0.15), GroupBudget([0, 0, 0, 1, 1, 1], [0.05, 0.1])):
        every = [
            best_on_support(gram[np.ix_(s, s)][None], moment[list(s)][None], np.array([s]), 6, ball)[0]
            for s in combinations(range(6), 2)
        ]
        values = [0.5 * w @ gram @ w - moment @ w for w in every]
        found = best_subset(gram, moment, 2, ball)
        assert found == pytest.approx(every[int(np.argmin(values))], abs=1e-9)


@pytest.mark.parametrize("constraint", [L1Ball, L2Ball, Box])
def test_what_must_hold_at_every_iterate(constraint):
    task = SparseRegression(
        **SMALL | {"constraint": constraint}, spectrum=(1.0, 4.0), iterations=30, inequality=True
    )
    run = FakeRun()
    task.evaluate(iht_2sp, run)
    rows = run.tables["repeat"]
    assert (rows.inequality < 0).all()
    assert (rows.sparsity_excess <= 0).all()
    assert (rows.set_excess <= 1e-12).all()
    assert (rows.factor_excess < 0).all()
    assert rows.gap.max() < 1e-9
    assert run.summaries["cost"] == 30 * 60


def test_a_violation_is_seen():
    def outside(objective, k, projection, rng):
        while True:
            yield np.full(objective.shape, 10.0)

    run = FakeRun()
    SparseRegression(**SMALL, spectrum=(1.0, 4.0), iterations=12, inequality=True).evaluate(outside, run)
    rows = run.tables["repeat"]
    assert (rows.inequality > 0).all()
    assert (rows.sparsity_excess == 12).all()
    assert (rows.set_excess > 1).all()
    assert rows.cost_to_target.isna().all()


def test_the_theorems_sparsity_and_bound():
    task = SparseRegression(**SMALL | {"dim": 40, "support": 1}, spectrum=(1.0, 1.21), rho=0.5, iterations=40)
    assert task.k == 6  # 4 κ² support, rounded up
    run = FakeRun()
    task.evaluate(iht_2sp, run)
    assert (run.tables["repeat"].excess < 0).all()


def test_a_budget_ends_a_run_late_but_not_early():
    method = functools.partial(hzo_ht_2sp, growth=1.0, directions=10)
    run = FakeRun()
    SparseRegression(**SMALL, iterations=12, budget=400).evaluate(method, run)
    assert run.summaries["iterations"] == 37  # 37 iterations of 11 values
    run = FakeRun()
    SparseRegression(**SMALL, iterations=50, budget=400).evaluate(method, run)
    assert run.summaries["iterations"] == 50
    rows = run.tables["repeat"]
    assert (rows.gap != rows.gap_after).any()


def test_a_pacer_gives_each_replicate_its_budget():
    task = SparseRegression(**SMALL | {"rows": 500}, iterations=30, pacer=iht_2sp)
    full, growing = FakeRun(), FakeRun()
    task.evaluate(iht_2sp, full)
    task.evaluate(hsg_ht_2sp, growing)
    rows = full.tables["repeat"]
    assert (rows.cost_to_target == 500 * rows.iterations_to_target).all()
    assert growing.tables["repeat"].tail_gap.notna().all()


def test_three_points():
    run = FakeRun()
    sets = {"l1": L1Ball, "box": Box, "groups": GroupBudget}
    ThreePoint(sets, draws=1000).evaluate(two_step, run)
    rows = run.tables["set"].set_index("set")
    assert (rows[["threshold_excess", "two_step_excess"]] <= 1e-10).all(axis=None)
    assert rows.exact_share["l1"] == 1
    assert rows.exact_share["box"] < 0.99

    def project_first(w, k, ball):
        return top(ball(w), k)

    ThreePoint({"box": Box}, draws=1000).evaluate(project_first, run)
    ThreePoint({"l1": L1Ball}, draws=1000).evaluate(lambda w, k, ball: -two_step(w, k, ball), run)
    assert run.tables["set"].two_step_excess.iloc[-1] > 0


def test_both_sides_take_turns():
    run = FakeRun()
    task = ProjectionCost(40, 7, 2, 3, WeightedL1Ball, iterations=15, repeats=2)
    task.evaluate({"two_step": iht_2sp, "exact": iht_exact}, run)
    rows = run.tables["repeat"]
    assert rows.method.tolist() == ["two_step", "exact"] * 2
    assert (rows.seconds > 0).all()


def test_softmax_gradient():
    rng = np.random.default_rng(0)
    problem = Softmax(rng.random((30, 4)), rng.integers(0, 3, 30), 3)
    w, u = rng.standard_normal((2, 12))
    slope = (problem.value(w + 1e-6 * u) - problem.value(w - 1e-6 * u)) / 2e-6
    assert problem.gradient(w) @ u == pytest.approx(slope, rel=1e-6)
    assert problem.batch_gradient(w, np.arange(30)) == pytest.approx(problem.gradient(w))
    assert problem.values(np.stack([w, u])) == pytest.approx([problem.value(w), problem.value(u)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rho": 0.7, "spectrum": (1.0, 2.0)}, r"rho=0\.7"),
        ({"rho": 0.5}, "needs a spectrum"),
        ({"spectrum": (2.0, 1.0)}, "spectrum"),
        ({"k": 2}, "support=3, k=2, dim=20"),
        ({"repeats": 0}, "repeats=0"),
        ({"share": -1.0}, r"share=-1\.0"),
    ],
)
def test_bad_settings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        SparseRegression(**SMALL | change)


# -- S&P 500 ---------------------------------------------------------------------------------------------


def skip_without_skfolio():
    if importlib.util.find_spec("skfolio") is None:
        pytest.skip("package absent: skfolio")


def sp500():
    node = yaml.safe_load((Path(__file__).resolve().parents[2] / "conf/data/sp500.yaml").read_text())
    node.pop("_target_")
    return SP500(**node)


def test_known_best_subsets():
    skip_without_skfolio()
    returns = sp500().load()
    assert returns.stocks.shape == (8312, 20)
    problem = Regressions(returns.stocks[None, :6000], returns.index[None, :6000])
    for size, names in ((2, "GE XOM"), (3, "GE JPM XOM"), (4, "GE JPM MSFT XOM")):
        best = best_subset(problem.gram[0], problem.moment[0], size, None)
        assert [returns.names[i] for i in np.flatnonzero(best)] == names.split()
        assert 0.65 < np.abs(best).sum() < 0.73


def test_known_ratios_of_hard_thresholding():
    skip_without_skfolio()
    run = FakeRun()
    IndexTracking(sp500(), 3, [1, 2, 4]).evaluate(iht_2sp, run)
    known = (1.70, 1.05, 0.62)
    assert [run.summaries[f"ratio_{c}"] for c in (1, 2, 4)] == pytest.approx(known, abs=0.01)


def test_other_files_are_refused(tmp_path, monkeypatch):
    folder = tmp_path / "skfolio" / "datasets" / "data"
    folder.mkdir(parents=True)
    (tmp_path / "skfolio" / "__init__.py").touch()
    (folder / "sp500_dataset.csv.gz").write_bytes(b"other")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingData, match=r"bundles another sp500_dataset\.csv\.gz"):
        sp500().load()


def test_an_absent_package_is_one_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingData, match="skfolio is not installed") as error:
        sp500().load()
    assert "\n" not in str(error.value)
