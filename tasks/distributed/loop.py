"""The training loop on several nodes: rounds of local steps on each node's own examples, resumable at every round."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import nn

from tasks.distributed.interface import Trainer
from tasks.run import Run
from tasks.training.examples import Examples, Order, to_device
from tasks.training.loop import Problem
from tasks.training.random_state import capture, reinstate, seeded
from tasks.training.recipe import Recipe, trainable


class NestedLoop:
    """In the place of a `tasks.training.loop.Loop`, for methods with several nodes.

    The examples are dealt out evenly over the nodes by a random permutation; every node goes through its own in
    epochs. Several ranks (`run.ranks`) share the nodes; two give the numbers of one to the last bit. The run goes on
    from a checkpoint bit by bit as if it had not been interrupted. Buffers of the model (running statistics) are
    nobody's: models with them are refused.

    Curve: `loss` (mean over nodes and local steps since the last point, each at the parameters before its update) at
    `points` evenly spread rounds; `<set>_<metric>` and the probes at the start and at `evaluations` of them.

    Args:
        nodes: N.
        local_steps: z.
        rounds: T.
        batch_size: examples of a local step.
        points, evaluations: of the curves, each at least 1.
        evaluation_batch_size: examples measured at once.
        checkpoint_every: rounds between checkpoints; None: when `run.due()` says so.

    Raises:
        ValueError: a value out of range.
    """

    def __init__(
        self,
        nodes: int,
        local_steps: int,
        rounds: int,
        batch_size: int,
        points: int = 50,
        evaluations: int = 10,
        evaluation_batch_size: int = 1000,
        checkpoint_every: int | None = None,
    ) -> None:
        counts = {"nodes": nodes, "local_steps": local_steps, "rounds": rounds, "batch_size": batch_size}
        counts |= {
            "points": points,
            "evaluations": evaluations,
            "evaluation_batch_size": evaluation_batch_size,
        }
        for name, value in counts.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.nodes, self.local_steps, self.rounds, self.batch_size = nodes, local_steps, rounds, batch_size
        self.points, self.evaluations, self.evaluation_batch_size = points, evaluations, evaluation_batch_size
        self.checkpoint_every = checkpoint_every

    def fit(self, run: Run, recipe: Recipe, model: nn.Module, problem: Problem) -> dict[str, float]:
        """Train `model` (on `run.device`); log curves; return the last evaluation's metrics and the last `loss`.

        Raises:
            FloatingPointError: a number is not finite (the run ends as diverged).
            ValueError: settings that do not fit the model or the number of examples or ranks.
        """
        if any(True for _ in model.buffers()):
            raise ValueError("a model with running statistics or other buffers cannot be averaged over nodes")
        if len(problem.train) < self.nodes:
            raise ValueError(f"{len(problem.train)} examples are too few for {self.nodes} nodes")
        return _Training(self, run, recipe, model, problem).go()


class _Training:
    def __init__(
        self, loop: NestedLoop, run: Run, recipe: Recipe, model: nn.Module, problem: Problem
    ) -> None:
        self.loop, self.run, self.model, self.problem = loop, run, model, problem
        self.params = trainable(model)
        if run.ranks > 1:
            for p in self.params:
                dist.broadcast(p.detach(), src=0)
        backend: Literal["serial", "torch.distributed"] = "torch.distributed" if run.ranks > 1 else "serial"
        method = cast(Callable[..., Trainer], recipe.optimizer)
        self.trainer = method(self.params, local_steps=loop.local_steps, nodes=loop.nodes, backend=backend)
        dealt = torch.randperm(len(problem.train), generator=run.generator("nodes")).tensor_split(loop.nodes)
        self.shares = {node: dealt[node] for node in self.trainer.own_nodes}
        self.orders = {node: self._order(node) for node in self.shares}
        self.round = 0
        self.losses = torch.zeros(loop.nodes)
        self.loss_sum, self.loss_count = 0.0, 0

    def _order(self, node: int) -> Order:
        return Order(
            len(self.shares[node]),
            self.loop.batch_size,
            lambda epoch: self.run.generator(f"order {node}", epoch),
        )

    def go(self) -> dict[str, float]:
        points, evaluations = (
            _spread(self.loop.points, self.loop.rounds),
            _spread(self.loop.evaluations, self.loop.rounds),
        )
        self._restore()
        metrics: dict[str, float] = {}
        if self.round == 0:
            self.run.log(step=0, **self._evaluate(self.problem.sets, self.problem.probes))
        first, rounds = self.round, self.loop.rounds
        for done in self.run.track(range(first + 1, rounds + 1), total=rounds - first):
            self.losses = torch.zeros(self.loop.nodes, dtype=torch.float64, device=self.run.device)
            self.trainer.round(self._gradient)
            loss = self._mean_loss()
            self.loss_sum, self.loss_count = self.loss_sum + loss, self.loss_count + 1
            self.round = done
            if done in points or done in evaluations:
                metrics = {"loss": self.loss_sum / self.loss_count}
                self.loss_sum, self.loss_count = 0.0, 0
                if done in evaluations:
                    metrics |= self._evaluate(self.problem.sets, self.problem.probes)
                self.run.log(step=done, **metrics)
            due, every = self.run.due(), self.loop.checkpoint_every
            if done < rounds and (due or (every and done % every == 0)):
                self._save(done)
        metrics |= self._evaluate(self.problem.final_sets, self.problem.final_probes)
        size = sum(p.numel() for p in self.params)
        return metrics | {"node_state": self.trainer.node_state / size}

    def _gradient(self, node: int, step: int) -> None:
        """Gradient of a local step's batch."""
        number = self.round * self.loop.local_steps + step
        index = self.shares[node][self.orders[node](number)]
        uniforms = torch.empty(len(index), 0)
        if draws := self.problem.train.draws:
            generator = self.run.generator(f"augmentation {node}", number)
            uniforms = torch.rand(len(index), draws, generator=generator)
        batch = to_device(self.problem.train.batch(index, uniforms), self.run.device)
        self.model.train()
        for p in self.params:
            p.grad = None
        with seeded(self.run.generator(f"forward {node}", number).initial_seed(), self.run.device):
            loss = self.problem.loss(self.model, batch)
            loss.backward()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss of node {node} is not finite in round {self.round + 1}")
        self.losses[node] += loss.detach().double()

    def _mean_loss(self) -> float:
        """Of the round, over all nodes."""
        if self.run.ranks > 1:
            dist.all_reduce(self.losses)  # every entry is one rank's, so nothing is rounded
        return self.losses.sum().item() / (self.loop.nodes * self.loop.local_steps)

    def _evaluate(
        self, sets: Mapping[str, Examples], probes: Mapping[str, Callable[[nn.Module], float]]
    ) -> dict[str, float]:
        """All ranks have the server's model, and each measures all of it."""
        metrics: dict[str, float] = {}
        self.model.eval()
        with seeded(self.run.generator("evaluation").initial_seed(), self.run.device):
            for name, examples in sets.items():
                found = self.problem.finish(self._measure(examples))
                metrics |= {f"{name}_{key}": value for key, value in found.items()}
            metrics |= {name: float(probe(self.model)) for name, probe in probes.items()}
        if bad := [name for name, value in metrics.items() if not math.isfinite(value)]:
            raise FloatingPointError(f"{bad[0]} is not finite after round {self.round}")
        return metrics

    @torch.no_grad()
    def _measure(self, examples: Examples) -> dict[str, float]:
        sums: dict[str, float] = {}
        total = 0.0
        for index in torch.arange(len(examples)).split(self.loop.evaluation_batch_size):
            batch = to_device(examples.batch(index, torch.empty(len(index), 0)), self.run.device)
            weight = float(self.problem.weight(batch))
            for key, value in self.problem.measure(self.model, batch).items():
                sums[key] = sums.get(key, 0.0) + weight * float(value)
            total += weight
        return {key: value / total for key, value in sums.items()}

    def _save(self, done: int) -> None:
        self.run.save(
            {
                "round": done,  # the order of examples and all draws of a step follow from it
                "params": [p.detach().clone() for p in self.params],
                "trainer": self.trainer.state_dict(),
                "global": capture(self.run.device),
                "loss": (self.loss_sum, self.loss_count),
            }
        )

    def _restore(self) -> None:
        state: dict[str, Any] | None = self.run.restore()
        if state is None:
            return
        with torch.no_grad():
            for p, saved in zip(self.params, state["params"], strict=True):
                p.copy_(saved)
        self.trainer.load_state_dict(state["trainer"])
        self.loss_sum, self.loss_count = state["loss"]
        reinstate(state["global"], self.run.device)
        self.round = int(state["round"])


def _spread(count: int, steps: int) -> set[int]:
    """At most `count` evenly spread steps in 1..steps, the last among them."""
    return {round(steps * number / count) for number in range(1, count + 1)} - {0}
