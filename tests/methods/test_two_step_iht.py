"""The two-step projection: numbers checked by hand, invariants, the methods' public faces, bad input."""

from itertools import combinations, islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods.minimize.two_step_iht import (
    SparseConstrainedRegressor,
    TwoStepIHT,
    hard_threshold,
    hsg_ht_2sp,
    hzo_ht_2sp,
    iht_2sp,
    two_step,
)
from methods.minimize.two_step_iht.baselines import exact_projection, iht_then_project, project_then_threshold
from methods.minimize.two_step_iht.sets import (
    Box,
    GroupBudget,
    L1Ball,
    L2Ball,
    Simplex,
    SubSimplex,
    WeightedL1Ball,
)
from methods.minimize.two_step_iht.solvers import LeastSquares, sphere_directions

SETS = {
    "l1": L1Ball(1.5),
    "l2": L2Ball(1.5),
    "linf": Box(0.7),
    "box": Box(1.0, widths=[0.5, 1.0, 2.0, 0.2, 1.5]),
    "weighted": WeightedL1Ball([0.5, 1.0, 2.0, 0.3, 1.0], 1.5),
    "groups": GroupBudget([0, 1, 0, 1, 2], [0.5, 1.0, 2.0]),
    "sub_simplex": SubSimplex(1.0),
}
vectors = st.lists(st.floats(-4, 4, allow_subnormal=False), min_size=5, max_size=5).map(np.array)


def regression(seed=0, rows=200, dim=12):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows, dim))
    truth = np.zeros(dim)
    truth[[1, 4, 7]] = [1.5, -1.2, 1.8]
    return LeastSquares(A, A @ truth + 0.1 * rng.standard_normal(rows)), truth


# -- operators -------------------------------------------------------------------------------------------


def test_hand_checked_projections():
    assert hard_threshold(np.array([3, -1, 0.5, 2.9]), 2).tolist() == [3, 0, 0, 2.9]
    assert two_step(np.array([3, -1, 0.5, 2.9]), 2, L1Ball(4.0)) == pytest.approx([2.05, 0, 0, 1.95])
    assert L2Ball()(np.array([3.0, 0, 0, 4])) == pytest.approx([0.6, 0, 0, 0.8])
    assert Simplex()(np.array([0.2, 0, 0])) == pytest.approx([7 / 15, 4 / 15, 4 / 15])


def test_the_two_step_projection_is_not_the_exact_one():
    w, box = np.array([3.0, 2.9]), Box(1.0, widths=[1.0, 2.9])
    near, exact = two_step(w, 1, box), exact_projection(w, 1, box)
    assert (near.tolist(), exact.tolist()) == ([1, 0], [0, 2.9])
    assert np.square(near - w).sum() == pytest.approx(12.41)
    assert np.square(exact - w).sum() == pytest.approx(9.0)


def test_order_matters():
    w, ball = np.array([3.0, 2.9]), L1Ball(1.0)
    assert two_step(w, 1, ball).tolist() == [1, 0]
    assert hard_threshold(ball(w), 1) == pytest.approx([0.55, 0])


@given(vectors, st.integers(1, 7))
def test_hard_threshold_is_a_stable_sort(w, k):
    kept = np.argsort(-np.abs(w), kind="stable")[:k]
    expected = np.zeros(5)
    expected[kept] = w[kept]
    assert hard_threshold(w, k).tolist() == expected.tolist()
    assert hard_threshold(torch.from_numpy(w), k).tolist() == expected.tolist()
    assert hard_threshold(np.stack([w, w[::-1]]), k)[0].tolist() == expected.tolist()


def test_ties_go_to_the_lowest_index():
    assert hard_threshold(np.array([1.0, -1.0, 1.0]), 2).tolist() == [1, -1, 0]


def test_nan_is_kept_so_that_it_shows():
    assert np.isnan(hard_threshold(np.array([5.0, np.nan, 1.0]), 1)).tolist() == [False, True, False]
    assert torch.isnan(hard_threshold(torch.tensor([5.0, torch.nan, 1.0]), 1)).tolist() == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("name", SETS)
@given(v=vectors, other=vectors)
def test_projections_are_projections(name, v, other):
    ball = SETS[name]
    u, z = ball(v), ball(other)
    assert ball.gauge(u) <= ball.radius + 1e-12
    assert ball(u) == pytest.approx(u, abs=1e-12)
    assert (v - u) @ (z - u) <= 1e-9  # the inequality that characterises the projection
    assert not ((u != 0) & (v == 0)).any()
    assert ball(np.stack([v, other]))[0] == pytest.approx(u, abs=1e-12)


@pytest.mark.parametrize("name", ["l1", "l2", "linf"])
@given(w=vectors, k=st.integers(1, 4))
def test_exact_on_symmetric_sets(name, w, k):
    ball, u = SETS[name], two_step(w, k, SETS[name])
    least = min(
        np.square(ball(w * np.isin(np.arange(5), support)) - w).sum() for support in combinations(range(5), k)
    )
    assert np.square(u - w).sum() == pytest.approx(least, abs=1e-9)


def test_three_point_inequality_by_hand():
    w, other = np.array([2.0, 1.0]), np.array([0.0, 1.0])
    v = hard_threshold(w, 1)
    left = np.square(v - other).sum()
    right = np.square(w - other).sum() - np.square(w - v).sum() + left
    assert (left, right) == (5, 8)


def test_one_set_for_each_replicate():
    v = np.array([[3.0, 0, 4], [3.0, 0, 4]])
    for kind in (L1Ball, L2Ball, Box, SubSimplex):
        both = kind(np.array([1.0, 2.0]))(v)
        assert both[0] == pytest.approx(kind(1.0)(v[0]))
        assert both[1] == pytest.approx(kind(2.0)(v[1]))


# -- the three methods -----------------------------------------------------------------------------------


def test_the_first_step_by_hand():
    objective = LeastSquares(np.eye(3) * 3**0.5, np.array([3.0, 1.0, -2.0]) * 3**0.5)
    first, second = islice(iht_2sp(objective, 2, L1Ball(3.0)), 2)
    assert first == pytest.approx([2, 0, -1])
    assert second == pytest.approx([2, 0, -1])
    assert objective.values(first[None])[0] == pytest.approx(1.5)
    assert objective.values(next(iht_2sp(objective, 2))[None])[0] == pytest.approx(0.5)


@pytest.mark.parametrize("solver", [iht_2sp, hsg_ht_2sp, hzo_ht_2sp])
def test_every_method_ends_at_the_same_point_and_stays_feasible(solver):
    objective, truth = regression()
    ball = L1Ball(0.6 * np.abs(truth).sum())
    end = None
    for w in islice(solver(objective, 3, ball, np.random.default_rng(1)), 45):
        assert (w != 0).sum() <= 3
        assert np.abs(w).sum() <= ball.radius + 1e-12
        end = w
    reference = list(islice(iht_2sp(objective, 3, ball), 300))[-1]
    assert end == pytest.approx(reference, abs=1e-6 if solver is iht_2sp else 0.05)


def test_replicates_do_not_depend_on_each_other():
    one, other = regression(0)[0], regression(1)[0]

    class Both:
        shape, terms = (2, 12), 200
        smoothness = np.array([[one.smoothness], [other.smoothness]])

        def gradient(self, w):
            return np.stack([one.gradient(w[0]), other.gradient(w[1])])

        def batch_gradient(self, w, batch):
            return np.stack([one.batch_gradient(w[0], batch[0]), other.batch_gradient(w[1], batch[1])])

        def values(self, points):
            return np.stack([one.values(points[0]), other.values(points[1])])

    for solver in (hsg_ht_2sp, hzo_ht_2sp):
        together = list(
            islice(solver(Both(), 4, L1Ball(2.0), [np.random.default_rng(s) for s in (5, 6)]), 8)
        )[-1]
        alone = list(islice(solver(other, 4, L1Ball(2.0), np.random.default_rng(6)), 8))[-1]
        assert together[1] == pytest.approx(alone, abs=1e-9)


def test_fixed_draws_can_be_played():
    objective, _ = regression()
    asked = []

    def batches(n, m):
        asked.append((n, m))
        return np.arange(m)

    list(islice(hsg_ht_2sp(objective, 3, sampler=batches, size=8, growth=2.0), 6))
    assert asked == [(200, 8), (200, 16), (200, 32), (200, 64), (200, 128)]  # then the whole gradient
    # unit vectors as directions and d of them: the estimate is the gradient, up to μ
    exact = next(iht_2sp(objective, 3, step=0.3))
    played = next(hzo_ht_2sp(objective, 3, step=0.3, directions=12, sampler=lambda q, d: np.eye(d), mu=1e-6))
    assert played == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("support", [None, 2, 5])
def test_the_zeroth_order_estimate_is_unbiased(support):
    u = sphere_directions(np.random.default_rng(0), 200_000, 6, support)
    assert np.linalg.norm(u, axis=1) == pytest.approx(1)
    assert ((u != 0).sum(1) == (support or 6)).all()
    assert 6 * u.T @ u / len(u) == pytest.approx(np.eye(6), abs=0.02)


def test_pipelines_are_feasible():
    objective, truth = regression()
    ball = L1Ball(0.6 * np.abs(truth).sum())
    for solver in (iht_then_project, project_then_threshold):
        for w in islice(solver(objective, 3, ball), 20):
            assert (w != 0).sum() <= 3
            assert np.abs(w).sum() <= ball.radius + 1e-12


# -- torch and scikit-learn ------------------------------------------------------------------------------


def test_the_optimizer_counts_over_all_parameters():
    objective, truth = regression()
    A, b = torch.from_numpy(objective.A), torch.from_numpy(objective.b)
    ball = L1Ball(0.6 * np.abs(truth).sum())
    left = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    right = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    optimizer = TwoStepIHT([left, right], lr=1 / objective.smoothness, k=3, projection=ball)

    def closure():
        optimizer.zero_grad()
        loss = (A @ torch.cat([left.reshape(-1), right]) - b).square().sum() / (2 * len(b))
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(20)]
    ours = list(islice(iht_2sp(objective, 3, ball), 20))[-1]
    assert torch.cat([left.reshape(-1), right]).detach().numpy() == pytest.approx(ours, abs=1e-12)
    assert losses[0] > losses[-1]


def test_the_estimator_finds_the_support_and_obeys_the_constraint():
    objective, truth = regression()
    model = SparseConstrainedRegressor(k=3, constraint=L1Ball(3.0)).fit(objective.A, objective.b + 2)
    assert np.flatnonzero(model.coef_).tolist() == [1, 4, 7]
    assert np.abs(model.coef_).sum() <= 3 + 1e-12
    free = SparseConstrainedRegressor(k=3).fit(objective.A, objective.b + 2)
    assert free.coef_ == pytest.approx(truth, abs=0.05)
    assert free.score(objective.A, objective.b + 2) > 0.95


@pytest.mark.slow
def test_the_estimator_passes_scikit_learns_checks():
    from sklearn.utils.estimator_checks import check_estimator

    results = check_estimator(SparseConstrainedRegressor(), on_skip=None, on_fail=None)
    assert [r["check_name"] for r in results if r["status"] not in ("passed", "skipped")] == []


# -- bad input -------------------------------------------------------------------------------------------


def test_the_simplex_is_refused_in_one_line():
    objective, _ = regression()
    X, y = objective.A, objective.b
    calls = [
        lambda: two_step(np.ones(3), 2, Simplex()),
        lambda: iht_2sp(objective, 3, Simplex()),
        lambda: hsg_ht_2sp(objective, 3, Simplex(), np.random.default_rng()),
        lambda: hzo_ht_2sp(objective, 3, Simplex(), np.random.default_rng()),
        lambda: exact_projection(np.ones(3), 2, Simplex()),
        lambda: TwoStepIHT([torch.zeros(3)], lr=1.0, k=2, projection=Simplex()),
        lambda: SparseConstrainedRegressor(constraint=Simplex()).fit(X, y),
    ]
    for call in calls:
        with pytest.raises(
            ValueError, match=r"Simplex\(1\.0\) is not support-preserving.*SubSimplex"
        ) as error:
            call()
        assert "\n" not in str(error.value)


def test_a_set_that_only_claims_to_preserve_supports_is_found_out():
    class Liar(Simplex):
        support_preserving = True

    with pytest.raises(ValueError, match="is not support-preserving"):
        two_step(np.array([0.2, 0.0, 0.0]), 1, Liar())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: hard_threshold(np.ones(2), 0), "k=0"),
        (lambda o: iht_2sp(o, 0), "k=0"),
        (lambda o: iht_2sp(o, 1, step=0.0), r"step=0\.0"),
        (lambda o: hsg_ht_2sp(o, 1), "either rng or sampler"),
        (lambda o: hsg_ht_2sp(o, 1, rng=np.random.default_rng(), growth=0.5), r"growth=0\.5"),
        (lambda o: hzo_ht_2sp(o, 1, rng=np.random.default_rng(), mu=0.0), r"mu=0\.0"),
        (lambda o: hzo_ht_2sp(o, 1, rng=np.random.default_rng(), support=13), "support=13"),
        (lambda o: TwoStepIHT([torch.zeros(3)], lr=0.0, k=2), r"lr=0\.0"),
        (lambda o: SparseConstrainedRegressor(k=0).fit(o.A, o.b), "k=0"),
        (lambda o: SparseConstrainedRegressor(max_iter=0).fit(o.A, o.b), "max_iter=0"),
        (lambda o: L1Ball(0.0), "L1Ball: the size must be positive"),
        (lambda o: WeightedL1Ball([1.0, 0.0]), "weights must be positive"),
        (lambda o: Box(1.0, widths=[0.0]), "widths must be positive"),
        (lambda o: GroupBudget([0, 2], [1.0, 1.0]), "groups 0 to 1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(regression()[0])
