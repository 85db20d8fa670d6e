"""What is asked of theories of the risk: curves R(t) of the linear model with inputs of covariance K.

R = ½ vᵀKv, v = θ - θ*, in units of time of d steps. K is [d, d], or its diagonal, [d].
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tasks.minimize.inputs import GaussianInputs
from tasks.run import Run

Curve = Callable[[Any], np.ndarray]


class Noise(Protocol):
    """The law of the label noise; a theory may know more of it."""

    def sample(self, size: Any, rng: np.random.Generator) -> np.ndarray:
        """Independent draws of the given shape."""


class RiskModel(Protocol):
    """The risk R(t) from v0, with a learning rate of its own."""

    def __call__(self, K: np.ndarray, v0: np.ndarray, *, noise: Any) -> Curve: ...


class ScheduledRisk(Protocol):
    """The risk R(t) from v0 without label noise, for the learning rate `lr`."""

    def __call__(self, K: np.ndarray, v0: np.ndarray, lr: float) -> Curve: ...


class Diffusion(Protocol):
    """Risks [paths, times] along random paths from v0, one for each generator."""

    def __call__(
        self,
        K: np.ndarray,
        v0: np.ndarray,
        *,
        noise: Any,
        times: Sequence[float],
        rng: Sequence[np.random.Generator],
    ) -> np.ndarray: ...


class RiskGap:
    """A theory's risk curve beside another one's, from v0 ~ N(0, I/d).

    Curves: `risk` and `reference` at `time`. Summary: gap, the largest distance of the two; final_risk.

    Args:
        inputs: law of the inputs.
        noise: law of the label noise; None: none.
        reference: a theory (K, v0, noise=...) -> R(t).
        horizon: time of the end.
        points: of a curve.
    """

    def __init__(
        self,
        inputs: GaussianInputs,
        noise: Noise | None,
        reference: RiskModel,
        horizon: float,
        points: int = 60,
    ) -> None:
        self.inputs, self.noise, self.reference = inputs, noise, reference
        self.times = np.linspace(0, horizon, points + 1)

    def evaluate(self, method: RiskModel, run: Run) -> None:
        """Solve both."""
        K, v0 = self.inputs.covariance(run.rng("rotation")), self.inputs.start(run.rng("start"))
        risk, other = (model(K, v0, noise=self.noise)(self.times) for model in (method, self.reference))
        for step, (time, a, b) in enumerate(zip(self.times, risk, other, strict=True)):
            run.log(step=step, time=float(time), risk=float(a), reference=float(b))
        run.summary(gap=float(np.abs(risk - other).max()), final_risk=float(risk[-1]))


class RiskLimit:
    """The risk at which a theory's curve ends, from v0 ~ N(0, I/d).

    Summary: limit, R(horizon); change, how much of it came since half the horizon.

    Args:
        inputs, noise, horizon: as for `RiskGap`.
    """

    def __init__(self, inputs: GaussianInputs, noise: Noise | None, horizon: float) -> None:
        self.inputs, self.noise, self.horizon = inputs, noise, horizon

    def evaluate(self, method: RiskModel, run: Run) -> None:
        """Solve to the end."""
        K, v0 = self.inputs.covariance(run.rng("rotation")), self.inputs.start(run.rng("start"))
        half, end = method(K, v0, noise=self.noise)(np.array([self.horizon / 2, self.horizon]))
        run.summary(limit=float(end), change=abs(float(end / half) - 1))


class TimeToTarget:
    """How soon a theory's curve falls to a share of its start, with the best of a grid of learning rates.

    Draw i has its own v0 ~ N(0, I/d) and, where inputs are rotated, its own rotation.

    Rows (unit `draw`), one for each draw: time_<k> and lr_<k> for targets 10^-k, the least time over the grid and the
    rate that has it; None if no rate gets there by `longest`. best_inside_<k>: that rate is no end of the grid.

    Args:
        inputs: law of the inputs.
        rates: [least, largest, number] of a geometric grid.
        targets: the k.
        draws: number of draws.
        longest: time at which a rate is given up.
        points: of the geometric grid of times on which a curve is looked up, 0.01 to `longest`; the time is then
            interpolated (linear in log R).
    """

    def __init__(
        self,
        inputs: GaussianInputs,
        rates: Sequence[float],
        targets: Sequence[int],
        draws: int,
        longest: float,
        points: int = 2000,
    ) -> None:
        least, largest, number = rates
        if not 0 < least < largest or number < 2:
            raise ValueError(f"rates must be [least, largest, number], not {list(rates)}")
        self.inputs, self.targets, self.draws = inputs, list(targets), draws
        self.rates = np.geomspace(least, largest, int(number))
        self.times = np.concatenate([[0.0], np.geomspace(1e-2, longest, points)])

    def evaluate(self, method: ScheduledRisk, run: Run) -> None:
        """One row a draw."""
        run.rows("draw", [self._draw(method, run, i) for i in run.track(range(self.draws), total=self.draws)])

    def _draw(self, method: ScheduledRisk, run: Run, i: int) -> dict[str, Any]:
        K, v0 = self.inputs.covariance(run.rng("rotation", i)), self.inputs.start(run.rng("start", i))
        curves = [method(K, v0, lr=float(rate))(self.times) for rate in self.rates]
        row: dict[str, Any] = {}
        for k in self.targets:
            times = np.array([first_time(self.times, curve, 10.0**-k) for curve in curves])
            best = int(times.argmin())
            reached = bool(np.isfinite(times[best]))
            row[f"time_{k}"] = float(times[best]) if reached else None
            row[f"lr_{k}"] = float(self.rates[best]) if reached else None
            row[f"best_inside_{k}"] = reached and 0 < best < len(times) - 1
        return row


class PathsAgainstODE:
    """Risks along paths of a stochastic differential equation against the ordinary one, from one v0 ~ N(0, I/d).

    Rows (unit `path`), one for each path and time: path, time, risk, ode.

    Curves: `risk`, the mean over paths, and `ode`.

    Args:
        inputs, noise: as for `RiskGap`.
        theory: (K, v0, lr, noise) -> R(t).
        lr: η of both.
        times: at which they are compared.
        paths: number of paths; path i has a Brownian motion of its own.
    """

    def __init__(
        self,
        inputs: GaussianInputs,
        noise: Noise | None,
        theory: Callable[..., Curve],
        lr: float,
        times: Sequence[float],
        paths: int,
    ) -> None:
        self.inputs, self.noise, self.theory = inputs, noise, theory
        self.lr, self.times, self.paths = lr, [float(t) for t in times], paths

    def evaluate(self, method: Callable[..., np.ndarray], run: Run) -> None:
        """Draw the paths, solve the equation."""
        K, v0 = self.inputs.covariance(run.rng("rotation")), self.inputs.start(run.rng("start"))
        rngs = [run.rng("path", i) for i in range(self.paths)]
        risks = method(K, v0, lr=self.lr, noise=self.noise, times=self.times, rng=rngs)
        ode = self.theory(K, v0, self.lr, self.noise)(self.times)
        path, time = np.indices(risks.shape)
        run.rows(
            "path",
            {
                "path": path.ravel(),
                "time": np.array(self.times)[time.ravel()],
                "risk": risks.ravel(),
                "ode": ode[time.ravel()],
            },
        )
        for step, (t, mean, solved) in enumerate(zip(self.times, risks.mean(0), ode, strict=True)):
            run.log(step=step, time=t, risk=float(mean), ode=float(solved))


def first_time(times: np.ndarray, risks: np.ndarray, share: float) -> float:
    """First time at which risks, log-interpolated, are down to a share of risks[0]; infinite if never.

    >>> float(first_time(np.array([0.0, 1.0, 2.0]), np.exp([0.0, -1.0, -2.0]), np.exp(-1.5)))
    1.5
    """
    with np.errstate(invalid="ignore"):
        below = np.flatnonzero(risks <= share * risks[0])
    if not below.size:
        return float("inf")
    k = int(below[0])
    high, low = np.log(risks[k - 1]), np.log(max(float(risks[k]), 1e-300))
    part = (high - np.log(share * risks[0])) / (high - low)
    return float(times[k - 1] + part * (times[k] - times[k - 1]))
