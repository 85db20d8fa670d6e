"""Least squares on binary features of very different frequency, spread over nodes, under heavy-tailed noise."""

import functools
from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from tasks.distributed.interface import Method, Trainer
from tasks.run import Run

BEYOND = 1e20  # a weight beyond it will not come back


class Noise(Protocol):
    """A law of independent noise with mean 0."""

    def sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws in double precision."""


class LeastSquares:
    """Repeats, side by side, of least squares on N nodes: every node has rows of its own, all have the same weights.

    Repeat i draws, from generators of its own, w* ~ N(0, I) and for each node `rows` binary rows x, whose first
    `frequent` features are 1 with probability 0.9 and the others with probability 0.1. The start is 0. The stochastic
    gradient of a node is the mean over `batch_size` rows, drawn with replacement, of x (⟨x, w - w*⟩ - ξ), where ξ is
    drawn anew for every drawn row. The risk is half the mean over all rows of ⟨x, w - w*⟩². Methods, numbers of local
    steps and lengths are paired by repeat: data and start are the same, and so are noise and batches of a round where
    the number of local steps is.

    A repeat in which a weight gets beyond 1e20 has diverged: it counts as the risk at 0.

    Rows (unit `repeat`):
        risk: at the last server model; relative_risk: over that at 0.
        diverged: 1 or 0.
        squared_gradient: mean over rounds of the squared norm of the risk's gradient at the server model.

    Curve: `risk`, median over repeats, at about `points` rounds.

    Summary: median_risk; mean_squared_gradient; diverged, their number; node_state, numbers in the state of one
    node's optimizer, and sent, numbers that a node sends in a round, both over numbers of the model.

    Args:
        noise: law of ξ over its scale.
        noise_scale: at least 0; 0: no noise.
        dim: d.
        frequent: frequent features, at most d.
        nodes: N.
        rows: a node.
        batch_size: rows of a gradient.
        local_steps: z.
        rounds: T.
        repeats: R.
        points: of the curve.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(
        self,
        noise: Noise,
        noise_scale: float,
        dim: int,
        frequent: int,
        nodes: int,
        rows: int,
        batch_size: int,
        local_steps: int,
        rounds: int,
        repeats: int,
        points: int = 60,
    ) -> None:
        if min(dim, nodes, rows, batch_size, local_steps, rounds, repeats, points) < 1:
            raise ValueError("all sizes and counts must be at least 1")
        if not noise_scale >= 0:
            raise ValueError(f"noise_scale must be at least 0, not {noise_scale}")
        if not 0 <= frequent <= dim:
            raise ValueError(f"frequent must be in [0, {dim}], not {frequent}")
        self.noise, self.noise_scale, self.dim, self.frequent = noise, noise_scale, dim, frequent
        self.nodes, self.rows = nodes, rows
        self.batch_size, self.local_steps, self.rounds = batch_size, local_steps, rounds
        self.repeats, self.points = repeats, points

    def evaluate(self, method: Method, run: Run) -> None:
        """Train all repeats together."""
        problem = Problem(self, run)
        trainer = self.trainer(method, problem)
        squared = torch.zeros(self.repeats, dtype=torch.float64, device=run.device)
        looks = set(np.rint(np.linspace(0, self.rounds, self.points + 1)).astype(int).tolist())
        run.log(step=0, risk=problem.risk().median().item())
        for t in run.track(range(self.rounds), total=self.rounds):
            squared += problem.squared_gradient()  # at the model that the round starts from
            self.round(trainer, problem, t)
            if t + 1 in looks:
                run.log(step=t + 1, risk=problem.risk().median().item())
        start = problem.risk_at_0()
        dead = problem.dead.view(self.nodes, self.repeats).any(0)
        risk = torch.where(dead, start, problem.risk())
        run.rows(
            "repeat",
            {
                "risk": risk.tolist(),
                "relative_risk": (risk / start).tolist(),
                "diverged": dead.long().tolist(),
                "squared_gradient": (squared / self.rounds).tolist(),
                **self.extra_columns(),
            },
        )
        run.summary(
            median_risk=risk.median().item(),
            mean_squared_gradient=(squared / self.rounds).mean().item(),
            diverged=int(dead.sum()),
            node_state=trainer.node_state / problem.w.numel(),
            sent=trainer.sent / (problem.w.numel() / self.nodes),
        )

    def trainer(self, method: Method, problem: "Problem") -> Trainer:
        """The method on the weights of all nodes and repeats."""
        return method([problem.w], local_steps=self.local_steps, nodes=self.nodes, backend="stacked")

    def round(self, trainer: Trainer, problem: "Problem", t: int) -> None:
        """One round."""
        problem.draw(t)
        trainer.round(lambda node, step: problem.gradient(step))

    def extra_columns(self) -> dict[str, list[float]]:
        """More columns of the rows."""
        return {}


class Problem:
    """The data, draws and weights of all repeats.

    Attributes:
        w: weights [N · R, d], those of node 0 first.
        dead: which of them have diverged [N · R].
    """

    def __init__(self, task: LeastSquares, run: Run) -> None:
        self.task, self.run = task, run
        n, repeats, d = task.nodes, task.repeats, task.dim
        frequency = torch.full((d,), 0.1, dtype=torch.float64)
        frequency[: task.frequent] = 0.9
        xs, targets = [], []
        for i in range(repeats):
            generator = run.generator("data", i)
            targets.append(torch.randn(d, generator=generator, dtype=torch.float64))
            uniform = torch.rand(n, task.rows, d, generator=generator, dtype=torch.float64)
            xs.append((uniform < frequency).double())
        x = torch.stack(xs, dim=1).to(run.device)  # [N, R, rows, d]
        self.gram = torch.einsum("nrkd,nrke->rde", x, x) / (n * task.rows)
        self.x = x.view(n * repeats * task.rows, d)
        self.target = torch.stack(targets).to(run.device)
        self.w = torch.zeros_like(self.target.repeat(n, 1)).requires_grad_()
        self.targets = self.target.repeat(n, 1)
        self.dead = torch.zeros(n * repeats, dtype=torch.bool, device=run.device)
        self.first = torch.arange(n * repeats, device=run.device)[:, None] * task.rows
        self.index, self.noise = torch.empty(0), torch.empty(0)

    def draw(self, t: int) -> None:
        """The rows and the noise of a round."""
        task = self.task
        shape = (task.local_steps, task.nodes, task.batch_size)
        index, noise = [], []
        for i in range(task.repeats):
            generator = self.run.generator(f"round {i}", t)
            index.append(torch.randint(task.rows, shape, generator=generator))
            if task.noise_scale > 0:
                noise.append(task.noise_scale * task.noise.sample(shape, generator))
        flat = (task.local_steps, task.nodes * task.repeats, task.batch_size)
        self.index = torch.stack(index, dim=2).view(flat).to(self.run.device)
        if noise:
            self.noise = torch.stack(noise, dim=2).view(flat).to(self.run.device)

    @torch.no_grad()
    def gradient(self, step: int) -> None:
        """The stochastic gradient of every node and repeat."""
        x = self.x[self.first + self.index[step]]  # [N · R, batch, d]
        residual = torch.bmm(x, (self.w - self.targets).unsqueeze(2)).squeeze(2)
        if self.task.noise_scale > 0:
            residual -= self.noise[step]
        gradient = torch.bmm(residual.unsqueeze(1), x).squeeze(1) / self.task.batch_size
        self.dead |= self.w.abs().amax(1) > BEYOND
        gradient[self.dead] = 0.0
        self.w.grad = gradient

    def risk(self) -> Tensor:
        """Of the server models, [R]."""
        v = self._error()
        return 0.5 * torch.einsum("rd,rde,re->r", v, self.gram, v)

    def squared_gradient(self) -> Tensor:
        """Squared norm of the risk's gradient at the server models, [R]."""
        return torch.einsum("rde,re->rd", self.gram, self._error()).square().sum(1)

    def risk_at_0(self) -> Tensor:
        """[R]."""
        return 0.5 * torch.einsum("rd,rde,re->r", self.target, self.gram, self.target)

    def _error(self) -> Tensor:
        return self.w.detach()[: self.task.repeats] - self.target


class MoveBounds(LeastSquares):
    """The same training, which looks at how far every step of nodes and server moves every number.

    For a method of which BiClip(u, d) makes the local steps and BiClip(ũ, d̃) those of the server (or the plain mean,
    for which nothing is reported of the server).

    Rows (unit `repeat`), besides those of `LeastSquares`; largest and smallest over all steps, nodes and numbers:
        largest_step: |move| over lr u.
        smallest_step: |move| over lr d, where the gradient is not exactly 0 (1 if d is 0).
        zero_moves: largest |move| where the gradient is exactly 0.
        largest_delta: |Δ| over z lr u.
        largest_server_move, smallest_server_move: |move| over η̃ ũ, and over η̃ d̃ where Δ is not 0.
    """

    def evaluate(self, method: Method, run: Run) -> None:
        """Train and look."""
        size, worst = self.repeats, functools.partial(torch.zeros, dtype=torch.float64, device=run.device)
        self._largest = {name: worst(size) for name in ("largest_step", "zero_moves", "largest_delta")}
        self._largest["largest_server_move"] = worst(size)
        self._smallest = {
            name: torch.full_like(worst(size), torch.inf)
            for name in ("smallest_step", "smallest_server_move")
        }
        super().evaluate(method, run)

    def round(self, trainer: Trainer, problem: Problem, t: int) -> None:
        """One round, step by step."""
        problem.draw(t)
        server = problem.w.detach()[: self.repeats].clone()
        before = problem.w.detach().clone()
        outer = trainer.outer

        def gradient(node: int, step: int) -> None:
            problem.gradient(step)
            before.copy_(problem.w.detach())

        def after_step(node: int, step: int) -> None:
            group, g = trainer.param_groups[0], problem.w.grad
            assert g is not None
            move = (problem.w.detach() - before).abs()
            self._most("largest_step", move / (group["lr"] * group["u"]))
            self._most("zero_moves", torch.where(g == 0, move, 0.0))
            if group["d"] > 0:
                self._least(
                    "smallest_step", torch.where(g == 0, torch.inf, move / (group["lr"] * group["d"]))
                )
            if step == self.local_steps - 1:
                delta = (
                    (problem.w.detach() - server.repeat(self.nodes, 1))
                    .view(self.nodes, *server.shape)
                    .mean(0)
                )
                self._delta = delta
                reach = self.local_steps * group["lr"] * group["u"]
                self._most("largest_delta", delta.abs() / reach)

        trainer.round(gradient, after_step)
        if hasattr(outer, "u"):
            move = (problem.w.detach()[: self.repeats] - server).abs()
            self._most("largest_server_move", move / (outer.lr * outer.u))
            if outer.d > 0:
                scaled = move / (outer.lr * outer.d)
                self._least("smallest_server_move", torch.where(self._delta == 0, torch.inf, scaled))

    def extra_columns(self) -> dict[str, list[float]]:
        """What was found."""
        columns = {name: values.tolist() for name, values in self._largest.items()}
        return columns | {
            name: torch.where(values.isinf(), 1.0, values).tolist() for name, values in self._smallest.items()
        }

    def _most(self, name: str, values: Tensor) -> None:
        found = values.view(-1, self.repeats, self.dim).amax((0, 2))
        self._largest[name] = torch.maximum(self._largest[name], found)

    def _least(self, name: str, values: Tensor) -> None:
        found = values.view(-1, self.repeats, self.dim).amin((0, 2))
        self._smallest[name] = torch.minimum(self._smallest[name], found)


class Reduction(LeastSquares):
    """One node and one local step against the plain method that it should then be, written out here.

    Rows (unit `repeat`), besides those of `LeastSquares`:
        difference: largest distance, over rounds, between the two weight vectors over the length of the plain one.

    Args:
        reference: "sgd": w - lr g; "signs": w - lr sgn(g); "clipped": w - lr min(1, level/‖g‖) g.
        lr: >= 0.
        level: for "clipped", > 0.
        others: as `LeastSquares`; nodes and local_steps are 1.
    """

    def __init__(
        self, reference: Literal["sgd", "signs", "clipped"], lr: float, level: float = 1.0, **others: Any
    ) -> None:
        super().__init__(nodes=1, local_steps=1, **others)
        rules: dict[str, Callable[[Tensor], Tensor]] = {
            "sgd": lambda g: g,
            "signs": torch.sign,
            "clipped": lambda g: g * (level / g.norm(dim=1, keepdim=True)).clamp(max=1.0),
        }
        if reference not in rules:
            raise ValueError(f"reference must be one of {', '.join(rules)}, not {reference!r}")
        self.rule, self.lr = rules[reference], lr

    def evaluate(self, method: Method, run: Run) -> None:
        """Train both."""
        self._plain: Tensor | None = None
        self._difference = torch.zeros(self.repeats, dtype=torch.float64, device=run.device)
        super().evaluate(method, run)

    @torch.no_grad()
    def round(self, trainer: Trainer, problem: Problem, t: int) -> None:
        """A step of each, on the same draws."""
        w = problem.w
        plain = torch.zeros_like(w) if self._plain is None else self._plain
        problem.draw(t)
        trained = w.detach().clone()
        w.copy_(plain)
        problem.gradient(0)
        assert w.grad is not None
        self._plain = plain - self.lr * self.rule(w.grad)
        w.copy_(trained)
        trainer.round(lambda node, step: problem.gradient(step))
        distance = (w - self._plain).norm(dim=1) / self._plain.norm(dim=1)
        self._difference = torch.maximum(self._difference, distance.detach())

    def extra_columns(self) -> dict[str, list[float]]:
        """What was found."""
        return {"difference": self._difference.tolist()}
