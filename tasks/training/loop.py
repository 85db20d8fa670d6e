"""The training loop: one method, one model, one set of examples, on one or several ranks, resumable at every step."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tasks.run import Run
from tasks.training.examples import Batch, Examples, Order, count, to_device
from tasks.training.parallel import Objective, Piece, Replicas, Shards
from tasks.training.random_state import capture, reinstate, seeded
from tasks.training.recipe import Optimizer, Recipe, call
from tasks.training.schedule import Schedule

Keep = None | Literal["none", "last"] | Mapping[str, int]
Measure = Callable[[nn.Module, Batch], Mapping[str, Tensor | float]]


@dataclass(frozen=True)
class Problem:
    """What a task trains on, and how it looks at the result.

    Attributes:
        train: the examples.
        loss: (model, batch) -> mean loss, a scalar with a graph.
        measure: (model, batch) -> name -> mean over the batch; called without gradients on a model in `eval` mode.
        weight: batch -> what it counts in a mean over several batches (examples, tokens); default: `len(batch[0])`.
        sets: name -> examples that every evaluation measures.
        final_sets: name -> examples measured once, at the end.
        probes: name -> function of the model, called at every evaluation (ranks of layers, ...).
        final_probes: the same, called once, at the end (sharpness, ...).
        finish: a set's means -> its metrics, for those that are no means over examples (correlations, perplexity, ...).
    """

    train: Examples
    loss: Callable[[nn.Module, Batch], Tensor]
    measure: Measure
    weight: Callable[[Batch], float] = count
    sets: Mapping[str, Examples] = field(default_factory=dict)
    final_sets: Mapping[str, Examples] = field(default_factory=dict)
    probes: Mapping[str, Callable[[nn.Module], float]] = field(default_factory=dict)
    final_probes: Mapping[str, Callable[[nn.Module], float]] = field(default_factory=dict)
    finish: Callable[[dict[str, float]], dict[str, float]] = dict


class Loop:
    """Trains for a number of epochs or steps.

    Curve: `loss` (mean over the batches since the last point, each at the parameters before its update) at `points`
    evenly spread steps; `<set>_<metric>` and the probes at the start and at `evaluations` evenly spread steps, the
    last of them at the end.

    Several ranks (`run.ranks`) share every batch: it is cut into `pieces`, which are dealt out. With equal `pieces`
    one rank and several give the same numbers, up to the order of additions (with two pieces, to the last bit).
    Where a model's loss does not depend on the cut (no batch normalization, no dropout), `pieces` may be left to be
    the number of ranks; the curves then agree as far as the model forgives rounding: a ReLU network may not, since a
    unit at its kink turns a difference in the last bit into a visible one. Batch normalization takes its statistics
    from a piece.

    The run goes on from a checkpoint bit by bit as if it had not been interrupted.

    Args:
        epochs, steps: length of the training, one of them.
        batch_size: examples an update.
        schedule: factor on the learning rate of every group of the optimizer; None leaves it alone.
        clip_norm: largest Euclidean norm of the gradient of all parameters jointly; None does not clip.
        pieces: parts that a batch is cut into and that are computed one after the other (gradient accumulation) or
            by several ranks; None: one for each rank.
        parallel: what ranks share out: "ddp" the batch, "fsdp" the parameters too (transformers only).
        drop_last: leave out an epoch's last batch if it is smaller than the others.
        points, evaluations: points of the curves, each at least 1.
        evaluation_batch_size: examples measured at once.
        checkpoint_every: steps between checkpoints; None: when `run.due()` says so.
        keep: what is left in `run.dir` beside the numbers: None or "none" nothing, "last" the final weights as
            `model.safetensors`, `{every: n}` also those after every n-th step as `model-<step>.safetensors`.

    Raises:
        ValueError: a value out of range.
    """

    def __init__(
        self,
        batch_size: int,
        epochs: int | None = None,
        steps: int | None = None,
        schedule: Schedule | None = None,
        clip_norm: float | None = None,
        pieces: int | None = None,
        parallel: Literal["ddp", "fsdp"] = "ddp",
        drop_last: bool = False,
        points: int = 100,
        evaluations: int = 10,
        evaluation_batch_size: int = 1000,
        checkpoint_every: int | None = None,
        keep: Keep = None,
    ) -> None:
        if (epochs is None) == (steps is None):
            raise ValueError("give epochs or steps, one of them")
        counts = {
            "batch_size": batch_size,
            "epochs": epochs,
            "steps": steps,
            "pieces": pieces,
            "points": points,
        }
        counts |= {"evaluations": evaluations, "evaluation_batch_size": evaluation_batch_size}
        counts |= {"checkpoint_every": checkpoint_every}
        for name, value in counts.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if parallel not in ("ddp", "fsdp"):
            raise ValueError(f"parallel must be ddp or fsdp, not {parallel!r}")
        if clip_norm is not None and clip_norm <= 0:
            raise ValueError(f"clip_norm must be above 0, not {clip_norm}")
        self.batch_size, self.epochs, self.steps, self.schedule = batch_size, epochs, steps, schedule
        self.clip_norm, self.pieces, self.parallel, self.drop_last = clip_norm, pieces, parallel, drop_last
        self.points, self.evaluations, self.evaluation_batch_size = points, evaluations, evaluation_batch_size
        self.checkpoint_every, self.keep = checkpoint_every, keep
        self.keep_every = _keep_every(keep)

    def fit(self, run: Run, recipe: Recipe, model: nn.Module, problem: Problem) -> dict[str, float]:
        """Train `model` (on `run.device`); log curves; return the last evaluation's metrics and the last `loss`.

        Raises:
            FloatingPointError: the loss is not finite (the run ends as diverged).
            ValueError: settings that do not fit the model or the number of ranks.
            RuntimeError: the optimizer does not call its closure.
        """
        return _Training(self, run, recipe, model, problem).go()


class _Training:
    """One training: a loop's settings together with what they are applied to."""

    def __init__(self, loop: Loop, run: Run, recipe: Recipe, model: nn.Module, problem: Problem) -> None:
        self.loop, self.run, self.problem = loop, run, problem
        self.pieces = loop.pieces or run.ranks
        if self.pieces < run.ranks or (loop.parallel == "fsdp" and self.pieces % run.ranks):
            raise ValueError(
                f"pieces={self.pieces} cannot be dealt out over {run.ranks} ranks ({loop.parallel})"
            )
        self.order = Order(
            len(problem.train), loop.batch_size, lambda epoch: run.generator("order", epoch), loop.drop_last
        )
        self.steps = loop.steps or (loop.epochs or 0) * self.order.epoch_steps
        self.generator = run.generator("optimizer")
        model = call(
            recipe.prepare,
            model,
            batches=_FirstEpoch(self),
            objective=problem.loss,
            generator=run.generator("prepare"),
        )
        if run.ranks > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.detach(), src=0)
        sharded = loop.parallel == "fsdp" and run.ranks > 1
        self.replicas = (Shards if sharded else Replicas)(
            Objective(model, problem.loss),
            run.ranks,
            run.device,
            cut_matters=loop.pieces is None and run.ranks > 1,
        )
        self.model = self.replicas.model
        self.optimizer: Optimizer = recipe.make_optimizer(
            self.model, generator=self.generator, total_steps=self.steps
        )
        groups = self.optimizer.param_groups if loop.schedule else []
        if any("lr" not in group for group in groups):
            raise ValueError("schedule needs an optimizer whose groups have an `lr`")
        self.rates = [group["lr"] for group in groups]
        self.loss_sum, self.loss_count = 0.0, 0

    def go(self) -> dict[str, float]:
        """From the start or the last checkpoint to the end."""
        points, evaluations = (
            _spread(self.loop.points, self.steps),
            _spread(self.loop.evaluations, self.steps),
        )
        first = self._restore()
        if first == 0:
            self.run.log(step=0, **self._evaluate(self.problem.sets, self.problem.probes))
        metrics: dict[str, float] = {}
        for step in self.run.track(range(first, self.steps), total=self.steps - first):
            self._update(step)
            done = step + 1
            if done in points or done in evaluations:
                metrics = {"loss": self.loss_sum / self.loss_count}
                self.loss_sum, self.loss_count = 0.0, 0
                if done in evaluations:
                    metrics |= self._evaluate(self.problem.sets, self.problem.probes)
                self.run.log(step=done, **metrics)
            if self.loop.keep_every and done % self.loop.keep_every == 0:
                self._write_weights(f"model-{done}.safetensors")
            due = self.run.due()
            every = self.loop.checkpoint_every
            if done < self.steps and (due or (every and done % every == 0)):
                self._save(done)
        metrics |= self._evaluate(self.problem.final_sets, self.problem.final_probes)
        if self.loop.keep not in (None, "none"):
            self._write_weights("model.safetensors")
        return metrics

    # -- a step ----------------------------------------------------------------------------------------------------

    def _update(self, step: int) -> None:
        if self.loop.schedule:
            factor = self.loop.schedule(step, self.steps)
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * factor
        self.model.train()
        closure = _Closure(self.replicas, self._pieces(step), self.loop.clip_norm, self.run.device)
        self.optimizer.step(closure)
        self.replicas.clear()
        if closure.loss is None:
            raise RuntimeError(f"{type(self.optimizer).__name__}.step(closure) did not call its closure")
        if not math.isfinite(closure.loss):
            self.run.log(step=step, loss=closure.loss)  # raises: the run has diverged
        self.loss_sum, self.loss_count = self.loss_sum + closure.loss, self.loss_count + 1

    def _pieces(self, step: int) -> list[Piece]:
        """This rank's pieces of a step's batch, without the empty ones that nobody waits for."""
        index, uniforms = self._draw(step)
        parts = list(zip(index.tensor_split(self.pieces), uniforms.tensor_split(self.pieces), strict=True))
        mine = range(self.run.rank, self.pieces, self.run.ranks)
        batches, weights, numbers = [], [], []
        for number in mine:
            part, numbers_of_part = parts[number]
            empty = len(part) == 0
            if empty:
                if self.run.ranks == 1:
                    continue
                part, numbers_of_part = index[:1], uniforms[:1]  # counts nothing, but keeps the ranks in step
            batch = to_device(self.problem.train.batch(part, numbers_of_part), self.run.device)
            batches.append(batch)
            weights.append(0.0 if empty else float(self.problem.weight(batch)))
            numbers.append(number)
        total = torch.tensor(sum(weights), dtype=torch.float64, device=self.run.device)
        if self.run.ranks > 1:
            dist.all_reduce(total)
        whole = total.item()
        return [
            Piece(
                batch,
                weight / whole,
                self.run.generator("forward", step * self.pieces + number).initial_seed(),
            )
            for batch, weight, number in zip(batches, weights, numbers, strict=True)
        ]

    def _draw(self, step: int) -> tuple[Tensor, Tensor]:
        index = self.order(step)
        uniforms = torch.empty(len(index), 0)
        if draws := self.problem.train.draws:
            uniforms = torch.rand(len(index), draws, generator=self.run.generator("augmentation", step))
        return index, uniforms

    def whole_batch(self, step: int) -> Batch:
        """A step's batch, uncut."""
        return to_device(self.problem.train.batch(*self._draw(step)), self.run.device)

    # -- looking at the model --------------------------------------------------------------------------------------

    def _evaluate(
        self, sets: Mapping[str, Examples], probes: Mapping[str, Callable[[nn.Module], float]]
    ) -> dict[str, float]:
        metrics: dict[str, float] = {}
        _tell(self.optimizer, "eval")
        self.model.eval()
        with seeded(self.run.generator("evaluation").initial_seed(), self.run.device):
            for name, examples in sets.items():
                found = self.problem.finish(self._measure(examples))
                metrics |= {f"{name}_{key}": value for key, value in found.items()}
            metrics |= {name: float(probe(self.model)) for name, probe in probes.items()}
        _tell(self.optimizer, "train")
        return metrics

    @torch.no_grad()
    def _measure(self, examples: Examples) -> dict[str, float]:
        """Means over a set, each rank measuring every `ranks`-th batch."""
        batches = torch.arange(len(examples)).split(self.loop.evaluation_batch_size)
        sums: dict[str, float] = {}
        weight_sum = 0.0
        for first in range(0, len(batches), self.run.ranks):
            number = first + self.run.rank
            here = number < len(batches)
            index = batches[number if here else 0]
            batch = to_device(examples.batch(index, torch.empty(len(index), 0)), self.run.device)
            weight = float(self.problem.weight(batch)) if here else 0.0
            for key, value in self.problem.measure(self.model, batch).items():
                sums[key] = sums.get(key, 0.0) + (weight * float(value) if here else 0.0)
            weight_sum += weight
        vector = torch.tensor([weight_sum, *sums.values()], dtype=torch.float64, device=self.run.device)
        if self.run.ranks > 1:
            dist.all_reduce(vector)
        means = (vector[1:] / vector[0]).tolist()
        return dict(zip(sums, means, strict=True))

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def _save(self, step: int) -> None:
        self.run.save(
            {
                "step": step,  # the order of examples and all draws of a step follow from it
                **self.replicas.state(self.optimizer),
                "generator": self.generator.get_state(),
                "global": capture(self.run.device),
                "loss": (self.loss_sum, self.loss_count),
            }
        )

    def _restore(self) -> int:
        """Step to go on from."""
        state = self.run.restore()
        if state is None:
            return 0
        self.replicas.load(self.optimizer, state)
        self.generator.set_state(state["generator"])
        self.loss_sum, self.loss_count = state["loss"]
        reinstate(state["global"], self.run.device)
        return int(state["step"])

    def _write_weights(self, name: str) -> None:
        _tell(self.optimizer, "eval")
        weights = self.replicas.weights()
        if self.run.rank == 0:
            write_weights(self.run.dir / name, weights)
        _tell(self.optimizer, "train")


class _Closure:
    """See `tasks.training.recipe.Closure`."""

    def __init__(
        self, replicas: Replicas, pieces: list[Piece], clip_norm: float | None, device: torch.device
    ) -> None:
        self.replicas, self.pieces, self.clip_norm, self.device = replicas, pieces, clip_norm, device
        self.loss: float | None = None

    def __call__(self, create_graph: bool = False) -> Tensor:
        """Loss of the whole batch; `.grad` of every parameter becomes its gradient."""
        if create_graph and self.clip_norm is not None:
            raise ValueError("clip_norm does not work with an optimizer that differentiates gradients again")
        first = self.loss is None
        loss = self.replicas.gradients(self.pieces, create_graph=create_graph, update_statistics=first)
        if self.clip_norm is not None:
            self.replicas.clip(self.clip_norm)
        if first:
            self.loss = loss
        return torch.tensor(loss, device=self.device)


class _FirstEpoch:
    """The batches of the first epoch, each made when it is asked for."""

    def __init__(self, training: _Training) -> None:
        self.training = training

    def __len__(self) -> int:
        return self.training.order.epoch_steps

    def __iter__(self) -> Iterator[Batch]:
        for step in range(len(self)):
            yield self.training.whole_batch(step)


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file, whole or not at all; tensors that share memory are written one by one."""
    from safetensors.torch import save_file

    spare = path.with_name(f".{path.name}")
    save_file({name: tensor.detach().cpu().clone().contiguous() for name, tensor in weights.items()}, spare)
    spare.replace(path)


def _spread(count: int, steps: int) -> set[int]:
    """At most `count` evenly spread steps in 1..steps, the last among them."""
    return {round(steps * number / count) for number in range(1, count + 1)} - {0}


def _tell(optimizer: Optimizer, what: Literal["train", "eval"]) -> None:
    if callable(tell := getattr(optimizer, what, None)):
        tell()


def _keep_every(keep: Keep) -> int | None:
    if keep in (None, "none", "last"):
        return None
    if isinstance(keep, Mapping) and set(keep) == {"every"} and int(keep["every"]) >= 1:
        return int(keep["every"])
    raise ValueError(f"keep must be none, last or {{every: n}} with n >= 1, not {keep!r}")
