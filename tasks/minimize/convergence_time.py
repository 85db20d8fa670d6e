"""How long does SGD take to a target, step size by step size, and does the predicted exponent describe it?"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tasks.minimize.landscapes import Landscape
from tasks.minimize.time_measures import jackknife_cv, lilliefors, line
from tasks.run import Run

Region = Callable[[np.ndarray], np.ndarray]


class Times(Protocol):
    """Hitting times of runs, arrays (runs,)."""

    steps: np.ndarray
    reached: np.ndarray
    diverged: np.ndarray


class Forecast(Protocol):
    """Predictions, None where there is none: exponents E of mean τ = exp(E/η), and C of mean τ ≈ C/η exp(E/η)."""

    exponent: float | None
    variance_exponent: float | None
    path_exponent: float | None
    prefactor: float | None


class Optimizer(Protocol):
    """SGD with some noise: simulated and predicted."""

    def forecast(self, landscape: Landscape, start: np.ndarray, target: Region) -> Forecast: ...

    def hitting_time(
        self,
        landscape: Landscape,
        eta: float,
        start: np.ndarray,
        target: Region,
        max_steps: int,
        generators: Sequence[np.random.Generator],
    ) -> Times: ...


class Method(Protocol):
    """A factory of them; its hyperparameters are bound."""

    def __call__(self) -> Optimizer: ...


class ConvergenceTime:
    """Hitting times τ of a target at several step sizes η.

    Run i at step size η draws from a generator of its own. Times are reported as ητ, whose logarithm is the linear one
    in 1/η. Runs that diverge are counted and left out; a mean counts all steps over all arrivals.

    Args:
        landscape: f.
        start: a point.
        target: region to reach.
        runs: number of runs at each η, a multiple of `blocks`.
        levels: values of E/η, E the method's exponent.
        etas: values of η, instead of `levels`.
        max_steps: most steps of a run.
        blocks: the runs at one η form this many blocks, each with a mean of its own.

    Rows:
        `hit`, a run: eta, steps, scaled (ητ), barrier (E/η, 9 digits), half_log (½ log 1/η), kramers_ratio (τ over the
        prediction with prefactor), cv_value (jackknife pseudo-value of the coefficient of variation of τ; their mean
        is the estimate).
        `block`, the runs of a block at one η: eta, inverse (1/η), barrier, variance_barrier and path_barrier (the same
        with the other exponents), mean, scaled (η mean).
        `level`, an η: eta, barrier, cv, ks and ks_p (distance of τ to an exponential law of the same mean, and its
        p-value).

    Summary: exponent, variance_exponent, path_exponent (None where infinite or unknown), prefactor; fitted and
    r_squared of the line log(η mean τ) in 1/η, fitted_ratio (fitted over exponent), unscaled_ratio (the slope of
    log(mean τ) over exponent); reached (share of runs); diverged; steps (all that were made, in units of η).

    Curves, one step an η: inverse, mean, scaled, predicted (η mean τ with prefactor).
    """

    def __init__(
        self,
        landscape: Landscape,
        start: list[float],
        target: Region,
        runs: int,
        levels: Sequence[float] = (),
        etas: Sequence[float] = (),
        max_steps: int = 50_000_000,
        blocks: int = 20,
    ) -> None:
        if bool(levels) == bool(etas):
            raise ValueError("give either levels or etas")
        if blocks < 2 or runs < blocks or runs % blocks:
            raise ValueError(f"runs={runs}: expected a multiple of blocks={blocks}")
        self.landscape, self.start, self.target = landscape, np.array(start, dtype=float), target
        self.runs, self.levels, self.etas = runs, levels, etas
        self.max_steps, self.blocks = max_steps, blocks

    def evaluate(self, method: Method, run: Run) -> None:
        """Run SGD at every step size."""
        optimizer = method()
        forecast = optimizer.forecast(self.landscape, self.start, self.target)
        etas = self._etas(forecast)
        state = run.restore() or {"k": 0, "means": [], "reached": 0, "diverged": 0, "steps": 0.0}
        for k in run.track(range(state["k"], len(etas)), total=len(etas)):
            eta = etas[k]
            generators = [run.rng(f"eta {eta:.9g}", i) for i in range(self.runs)]
            times = optimizer.hitting_time(
                self.landscape, eta, self.start, self.target, self.max_steps, generators
            )
            mean = self._record(run, forecast, k, eta, times)
            state["k"], state["means"] = k + 1, [*state["means"], mean]
            state["reached"] += int(times.reached.sum())
            state["diverged"] += int(times.diverged.sum())
            state["steps"] += float(times.steps.sum())
            if run.due():
                run.save(state)
        self._summarise(run, forecast, np.array(etas), state)

    def _etas(self, forecast: Forecast) -> list[float]:
        if self.etas:
            return list(self.etas)
        if not forecast.exponent or not np.isfinite(forecast.exponent):
            raise ValueError(f"levels of E/η need an exponent above 0, not {forecast.exponent}: give etas")
        return [forecast.exponent / level for level in self.levels]

    def _record(self, run: Run, forecast: Forecast, k: int, eta: float, times: Times) -> float | None:
        """Rows and a line of the curve for one η; returns its mean τ, None without arrivals."""
        hit, steps = times.reached, np.asarray(times.steps, dtype=float)
        barrier = _over(forecast.exponent, eta)
        predicted = None
        if forecast.prefactor is not None and barrier is not None:
            predicted = forecast.prefactor / eta * float(np.exp(barrier))
        cv, values = jackknife_cv(steps[hit])
        pseudo = np.full(self.runs, np.nan)
        pseudo[hit] = values
        base = {"eta": eta, "barrier": barrier}
        run.rows(
            "hit",
            {
                "i": list(range(self.runs)),
                **{name: [value] * self.runs for name, value in base.items()},
                "half_log": [0.5 * float(np.log(1 / eta))] * self.runs,
                "steps": _present(steps, hit),
                "scaled": _present(eta * steps, hit),
                "kramers_ratio": _present(steps / predicted, hit) if predicted else [None] * self.runs,
                "cv_value": _present(pseudo, hit & np.isfinite(pseudo)),
            },
        )
        blocks = []
        for i, members in enumerate(np.split(np.arange(self.runs), self.blocks)):
            mean = _mean(times, members)
            blocks.append(
                {
                    "i": i,
                    **base,
                    "inverse": 1 / eta,
                    "mean": mean,
                    "scaled": None if mean is None else eta * mean,
                }
                | {
                    "variance_barrier": _over(forecast.variance_exponent, eta),
                    "path_barrier": _over(forecast.path_exponent, eta),
                }
            )
        run.rows("block", blocks)
        distance, p = lilliefors(steps[hit], run.rng(f"lilliefors {eta:.9g}"))
        run.rows("level", [{"i": k, **base, "cv": cv, "ks": distance, "ks_p": p}])
        total = _mean(times, np.arange(self.runs))
        if total is not None:
            known = {} if predicted is None else {"predicted": eta * predicted}
            run.log(step=k, inverse=1 / eta, mean=total, scaled=eta * total, **known)
        return total

    def _summarise(self, run: Run, forecast: Forecast, etas: np.ndarray, state: dict[str, Any]) -> None:
        fitted = unscaled = r_squared = None
        if len(etas) > 1 and None not in state["means"]:
            means = np.array(state["means"])
            fitted, r_squared = line(1 / etas, np.log(etas * means))
            unscaled, _ = line(1 / etas, np.log(means))
        exponent = _finite(forecast.exponent)
        known = bool(exponent) and fitted is not None and unscaled is not None
        count = self.runs * len(etas)
        run.summary(
            exponent=exponent,
            variance_exponent=_finite(forecast.variance_exponent),
            path_exponent=_finite(forecast.path_exponent),
            prefactor=forecast.prefactor,
            fitted=fitted,
            r_squared=r_squared,
            fitted_ratio=fitted / exponent if known else None,  # type: ignore[operator]
            unscaled_ratio=unscaled / exponent if known else None,  # type: ignore[operator]
            reached=state["reached"] / count,
            diverged=state["diverged"],
            steps=state["steps"],
        )


def _over(exponent: float | None, eta: float) -> float | None:
    known = _finite(exponent)
    return None if known is None else round(known / eta, 9)


def _finite(exponent: float | None) -> float | None:
    return None if exponent is None or not np.isfinite(exponent) else exponent


def _present(values: np.ndarray, there: np.ndarray) -> list[float | None]:
    return [float(value) if ok else None for value, ok in zip(values, there, strict=True)]


def _mean(times: Times, members: np.ndarray) -> float | None:
    """All steps over all arrivals of these runs, diverged ones apart."""
    arrivals = int(times.reached[members].sum())
    kept = members[~times.diverged[members]]
    return float(times.steps[kept].sum()) / arrivals if arrivals else None
