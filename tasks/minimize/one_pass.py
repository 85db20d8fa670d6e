"""Stochastic optimization of a linear model that sees every sample once, against theories of its risk."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tasks.minimize.inputs import Inputs
from tasks.minimize.interface import bind
from tasks.minimize.risk import Curve, Noise
from tasks.run import Run

BLOCK = 2_000_000  # numbers of a block of inputs


class Method(Protocol):
    """A factory of torch optimizers that step from `.grad` alone and treat coordinates alike: then the rows of one
    parameter are repeats of one run."""

    def __call__(self, params: Iterable[Tensor]) -> Any: ...


class OnePass:
    """Repeats, side by side, of least squares with labels y = ⟨x, θ*⟩ + ε and a fresh sample a step, from θ_0 = 0.

    Repeat i draws θ* ~ N(0, I/d), inputs and noise from generators of its own. The optimizer gets the gradient
    (⟨x, θ⟩ - y) x of each repeat, a row of one parameter [R, d]. Hyperparameters may be in terms of d ("0.7/d"). The
    risk is R = ½ (θ - θ*)ᵀK(θ - θ*), time is steps over d, and lr of the theories is d times that of the optimizer.

    Rows (unit `repeat`):
        error_<name>: largest |R - theory| at times 0, 1, 2, ...
        relative_error_<name>: the same over the theory's largest risk at these times.
        initial_risk, final_risk; growth, final over initial; peak, largest recorded over initial.
        ode_growth: of the theory `ode`, if there is one.
        average_risk: mean of the recorded risks from time `average_from` on; limit_risk: what `limit` says of it.

    Curves: at `time`, `risk` (mean over repeats), `one_risk` (of repeat 0) and every theory's mean.

    Summary: means of the rows.

    Args:
        inputs: law of the inputs.
        noise: law of the label noise; None: none.
        horizon: time of the end, a whole number.
        repeats: R.
        theories: by name, (K, v0, lr, noise) -> R(t), v0 [R, d]; None: none.
        limit: (K, lr, noise) -> limit of the risk; None: not asked for.
        average_from: time; None: no average.
        records: risks recorded in a unit of time, at most d.
        points: of a curve, about.
    """

    def __init__(
        self,
        inputs: Inputs,
        noise: Noise | None,
        horizon: int,
        repeats: int,
        theories: Mapping[str, Callable[..., Curve]] | None = None,
        limit: Callable[..., float] | None = None,
        average_from: float | None = None,
        records: int = 20,
        points: int = 120,
    ) -> None:
        if repeats < 1 or horizon < 1 or records < 1:
            raise ValueError("repeats, horizon and records must be at least 1")
        if average_from is not None and not 0 <= average_from < horizon:
            raise ValueError(f"average_from must be in [0, {horizon}), not {average_from}")
        self.inputs, self.noise, self.horizon, self.repeats = inputs, noise, horizon, repeats
        self.theories, self.limit = dict(theories or {}), limit
        self.average_from, self.records, self.points = average_from, records, points

    def evaluate(self, method: Method, run: Run) -> None:
        """Run all repeats, solve the theories, compare."""
        d = self.inputs.dim
        K = self.inputs.covariance(run.rng("rotation"))
        starts = [run.rng("start", i).standard_normal(d) / np.sqrt(d) for i in range(self.repeats)]
        target = torch.from_numpy(np.stack(starts)).to(run.device, run.dtype or torch.float64)
        theta = torch.zeros_like(target)
        optimizer: Any = bind(method, d=float(d))([theta])
        steps = np.unique(np.rint(np.linspace(0, self.horizon, self.horizon * min(self.records, d) + 1) * d))
        risks = self._simulate(run, optimizer, theta, target, K, steps.astype(int))
        times = steps / d

        lr = float(optimizer.param_groups[0]["lr"]) * d
        curves = {
            name: np.broadcast_to(theory(K, -np.stack(starts), lr, self.noise)(times), risks.shape)
            for name, theory in self.theories.items()
        }
        rows = self._rows(times, risks, curves)
        if self.limit is not None:
            level = float(self.limit(K, lr, self.noise))
            rows = [row | {"limit_risk": level} for row in rows]
        run.rows("repeat", rows)
        run.summary(**{name: float(np.mean([row[name] for row in rows])) for name in rows[0]})
        for k in np.unique(np.rint(np.linspace(0, len(times) - 1, self.points + 1)).astype(int)):
            line = {"risk": risks[:, k].mean(), "one_risk": risks[0, k]}
            line |= {name: curve[:, k].mean() for name, curve in curves.items()}
            run.log(step=int(steps[k]), time=float(times[k]), **{name: float(v) for name, v in line.items()})

    @torch.no_grad()
    def _simulate(
        self, run: Run, optimizer: Any, theta: Tensor, target: Tensor, K: np.ndarray, steps: np.ndarray
    ) -> np.ndarray:
        """Risks [R, records] after these numbers of steps; `theta` is moved."""
        samplers = [self.inputs.sampler(K, run.rng("inputs", i)) for i in range(self.repeats)]
        noises = [run.rng("noise", i) for i in range(self.repeats)]
        covariance = torch.from_numpy(K).to(theta)
        theta.grad = torch.zeros_like(theta)
        risks = torch.empty(len(steps), self.repeats, dtype=theta.dtype, device=theta.device)
        wanted, last = dict(zip(steps.tolist(), range(len(steps)), strict=True)), int(steps[-1])
        risks[0] = _risk(theta - target, covariance)
        block = max(1, BLOCK // theta.numel())
        for first in run.track(range(0, last, block), total=-(-last // block)):
            n = min(block, last - first)
            X = torch.from_numpy(np.stack([draw(n) for draw in samplers], axis=1)).to(theta)  # [n, R, d]
            y = (X * target).sum(-1)
            if self.noise is not None:
                draws = np.stack([self.noise.sample(n, rng) for rng in noises], axis=1)
                y += torch.from_numpy(draws).to(theta)
            for k, (x, label) in enumerate(zip(X, y, strict=True), start=first + 1):
                residual = (x * theta).sum(-1) - label
                torch.mul(residual.unsqueeze(-1), x, out=theta.grad)
                optimizer.step()
                if k in wanted:
                    risks[wanted[k]] = _risk(theta - target, covariance)
        return risks.T.double().cpu().numpy()

    def _rows(
        self, times: np.ndarray, risks: np.ndarray, curves: Mapping[str, np.ndarray]
    ) -> list[dict[str, float]]:
        columns = {
            "initial_risk": risks[:, 0],
            "final_risk": risks[:, -1],
            "growth": risks[:, -1] / risks[:, 0],
            "peak": risks.max(1) / risks[:, 0],
        }
        whole = times == np.rint(times)  # the records hold every whole time exactly
        for name, curve in curves.items():
            error = np.abs(risks - curve)[:, whole].max(1)
            columns[f"error_{name}"] = error
            columns[f"relative_error_{name}"] = error / curve[:, whole].max(1)
        if "ode" in curves:
            columns["ode_growth"] = curves["ode"][:, -1] / curves["ode"][:, 0]
        if self.average_from is not None:
            columns["average_risk"] = risks[:, times >= self.average_from].mean(1)
        return [{name: float(column[i]) for name, column in columns.items()} for i in range(len(risks))]


class SignMoments:
    """Second moments of an optimizer's first steps on least squares against the covariance that theory names.

    With steps ∓lr·sign(x), their second moment over lr² is E sign(x) sign(x)ᵀ = (2/π) arcsin(K_ij / √(K_ii K_jj)).

    Summary: largest_z, the largest distance over entries above the diagonal between the mean over `samples` steps and
    theory, in standard errors of the mean (from the theory's variance 1 - m² of a product of two signs with mean m);
    diagonal_error, the largest distance of an entry of the diagonal from 1.

    Args:
        inputs: law of the inputs.
        theory: K -> K_σ; its 2/π-fold is the second moment.
        samples: number of inputs.
        batch: inputs at once; changes no number.
    """

    def __init__(
        self, inputs: Inputs, theory: Callable[[np.ndarray], np.ndarray], samples: int, batch: int = 50_000
    ) -> None:
        self.inputs, self.theory, self.samples, self.batch = inputs, theory, samples, batch

    def evaluate(self, method: Method, run: Run) -> None:
        """One step from 0 for each input."""
        d = self.inputs.dim
        K = self.inputs.covariance(run.rng("rotation"))
        draw, labels = self.inputs.sampler(K, run.rng("inputs")), run.rng("noise")
        total = torch.zeros(d, d, dtype=torch.float64)
        for first in run.track(range(0, self.samples, self.batch), total=-(-self.samples // self.batch)):
            n = min(self.batch, self.samples - first)
            theta = torch.zeros(n, d, dtype=torch.float64)
            optimizer: Any = bind(method, d=float(d))([theta])
            theta.grad = torch.from_numpy(draw(n) * labels.standard_normal((n, 1)))
            optimizer.step()
            moves = theta / float(optimizer.param_groups[0]["lr"])
            total += moves.T @ moves
        moment, expected = (total / self.samples).numpy(), 2 / np.pi * self.theory(K)
        above = np.triu_indices(d, 1)
        deviation = np.sqrt((1 - expected[above] ** 2) / self.samples)
        run.summary(
            largest_z=float((np.abs(moment - expected)[above] / deviation).max()),
            diagonal_error=float(np.abs(np.diag(moment) - 1).max()),
        )


def _risk(v: Tensor, K: Tensor) -> Tensor:
    """½ vᵀKv of each row."""
    return 0.5 * (v * (v * K if K.ndim == 1 else v @ K)).sum(-1)
