"""Measures of hitting times: exponents, and how near their law is to an exponential one."""

import numpy as np
import pandas as pd
from scipy import stats

LAWS = 999  # simulated samples behind a p-value


def rate(frame: pd.DataFrame, x: str = "inverse", y: str = "scaled") -> float:
    """Least-squares slope of log y in x over the rows of a unit (a block of runs at each step size); NaN where a block
    has no mean.

    >>> rate(pd.DataFrame({"inverse": [10.0, 20.0, 30.0], "scaled": np.exp([1.0, 2.0, 3.0])}))
    0.1
    """
    values = frame[y].to_numpy(dtype=float)
    if np.isnan(values).any() or len(values) < 2:
        return float("nan")
    return line(frame[x].to_numpy(dtype=float), np.log(values))[0]


def line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope and R² of the least-squares line."""
    fit = stats.linregress(x, y)
    return float(fit.slope), float(fit.rvalue**2)


def jackknife_cv(times: np.ndarray) -> tuple[float | None, np.ndarray]:
    """Coefficient of variation (standard deviation over mean), and its jackknife pseudo-values.

    Pseudo-value i is n CV - (n - 1) CV without time i; their mean and its standard error are an estimate of the CV and
    of its error (Tukey). Fewer than 3 times: None and NaN.

    >>> cv, values = jackknife_cv(np.array([1.0, 2.0, 3.0, 6.0]))
    >>> cv, len(values)
    (0.720082, 4)
    """
    n = len(times)
    if n < 3:
        return None, np.full(n, np.nan)
    total, squares = times.sum(), (times**2).sum()
    rest, rest_squares = total - times, squares - times**2
    without = np.sqrt(np.maximum(rest_squares - rest**2 / (n - 1), 0.0) / (n - 2)) / (rest / (n - 1))
    cv = float(times.std(ddof=1) / times.mean())
    return cv, n * cv - (n - 1) * without


def lilliefors(times: np.ndarray, rng: np.random.Generator) -> tuple[float | None, float | None]:
    """Kolmogorov-Smirnov distance to the exponential law with the sample's mean, and its p-value.

    As the mean is estimated, the p-value comes from simulated exponential samples of the same size (Lilliefors);
    fewer than 3 times: None.

    >>> lilliefors(np.arange(1.0, 100.0), np.random.default_rng(0))
    (0.160, 0.002)
    """
    n = len(times)
    if n < 3:
        return None, None
    distance = _distances(times[None])[0]
    simulated = np.concatenate([_distances(rng.standard_exponential((37, n))) for _ in range(LAWS // 37)])
    return float(distance), float((1 + (simulated >= distance).sum()) / (len(simulated) + 1))


def _distances(samples: np.ndarray) -> np.ndarray:
    """Of each row of samples (m, n)."""
    n = samples.shape[1]
    law = 1 - np.exp(-np.sort(samples, axis=1) / samples.mean(axis=1, keepdims=True))
    steps = np.arange(n + 1) / n
    return np.maximum(steps[1:] - law, law - steps[:-1]).max(axis=1)
