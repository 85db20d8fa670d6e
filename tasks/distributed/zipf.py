"""A small transformer labels tokens whose frequencies follow Zipf's law: several seeds and all nodes side by side."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from tasks.distributed.interface import Method, Trainer
from tasks.run import Run
from tasks.training.random_state import seeded


class ZipfTokens:
    """Sequences of tokens with a label each, for R repeats: token k of 1..V has a probability in proportion to k^-a.

    A repeat draws for every token one of `classes` classes and one bit. The label of a place is the class of its
    token, moved on by one if the bit of the token before it is set (the first place has none before it).

    Args:
        tokens: V.
        exponent: a >= 0.
        classes: at least 2.
        length: of a sequence.
    """

    def __init__(self, tokens: int, exponent: float, classes: int, length: int) -> None:
        if min(tokens, length) < 1 or classes < 2 or exponent < 0:
            raise ValueError("tokens and length must be at least 1, classes at least 2, exponent at least 0")
        self.tokens, self.exponent, self.classes, self.length = tokens, exponent, classes, length
        self.frequency = torch.arange(1, tokens + 1, dtype=torch.float64) ** -exponent

    def rules(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Classes and bits of the tokens, [V] each."""
        kinds = torch.randint(self.classes, (self.tokens,), generator=generator)
        return kinds, torch.randint(2, (self.tokens,), generator=generator)

    def sequences(
        self, n: int, rules: tuple[Tensor, Tensor], generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Tokens and labels, [n, length] each."""
        drawn = torch.multinomial(self.frequency, n * self.length, replacement=True, generator=generator)
        x = drawn.view(n, self.length)
        kinds, bits = rules
        before = torch.cat([torch.zeros(n, 1, dtype=torch.long), bits[x[:, :-1]]], dim=1)
        return x, (kinds[x] + before) % self.classes


class TokenLabels:
    """Trains R transformers on N nodes each, from R starts on R sets of rules, and measures them on new sequences.

    Every local step of a node draws new sequences. Methods are paired by repeat: start, rules and sequences are the
    same. The run goes on from a checkpoint bit by bit as if it had not been interrupted.

    Rows (unit `repeat`): test_accuracy, test_loss; rare_accuracy: on tokens outside the most frequent tenth;
    diverged: 1 if the loss is not finite at the end (its accuracy then counts as 0).

    Curves: test_accuracy and test_loss, means over repeats, at the start and at `evaluations` rounds.

    Summary: means of the rows (test_loss of those that have not diverged); node_state: numbers in the state of one
    node's optimizer over numbers of the model; parameters: numbers of a model.

    Args:
        data: law of the sequences.
        model: (tokens=, length=) -> network without buffers and dropout with scores [n, length, tokens]; the first
            `classes` scores of a place are those of its classes.
        nodes: N.
        local_steps: z.
        rounds: T.
        batch_size: sequences of a local step.
        test_size: sequences a repeat.
        repeats: R.
        evaluations: points of the curves.
        checkpoint_every: rounds between checkpoints; None: when `run.due()` says so.
    """

    def __init__(
        self,
        data: ZipfTokens,
        model: Callable[..., nn.Module],
        nodes: int,
        local_steps: int,
        rounds: int,
        batch_size: int,
        test_size: int,
        repeats: int,
        evaluations: int = 10,
        checkpoint_every: int | None = None,
    ) -> None:
        if min(nodes, local_steps, rounds, batch_size, test_size, repeats, evaluations) < 1:
            raise ValueError("all sizes and counts must be at least 1")
        self.data, self.model, self.nodes, self.local_steps = data, model, nodes, local_steps
        self.rounds, self.batch_size, self.test_size = rounds, batch_size, test_size
        self.repeats, self.evaluations, self.checkpoint_every = repeats, evaluations, checkpoint_every

    def evaluate(self, method: Method, run: Run) -> None:
        """Train all repeats together."""
        training = _Stack(self, run)
        trainer = method(
            list(training.params.values()),
            local_steps=self.local_steps,
            nodes=self.nodes,
            backend="stacked",
        )
        first = training.restore(trainer)
        looks = set(np.rint(np.linspace(0, self.rounds, self.evaluations + 1)).astype(int).tolist())
        if first == 0:
            training.log(0)
        for t in run.track(range(first, self.rounds), total=self.rounds - first):
            training.draw(t)
            trainer.round(training.gradient)
            if t + 1 in looks:
                training.log(t + 1)
            due, every = run.due(), self.checkpoint_every
            if t + 1 < self.rounds and (due or (every and (t + 1) % every == 0)):
                training.save(t + 1, trainer)
        loss, accuracy, rare = training.measure()
        lost = ~loss.isfinite()
        columns = {
            "test_accuracy": torch.where(lost, 0.0, accuracy),
            "rare_accuracy": torch.where(lost, 0.0, rare),
            "diverged": lost.double(),
        }
        rows = {name: values.tolist() for name, values in columns.items()}
        run.rows("repeat", rows | {"test_loss": [x if np.isfinite(x) else None for x in loss.tolist()]})
        size = sum(p.numel() for p in training.params.values()) // (self.nodes * self.repeats)
        run.summary(
            **{name: values.mean().item() for name, values in columns.items()},
            test_loss=None if lost.all() else loss[~lost].mean().item(),
            node_state=trainer.node_state / (size * self.nodes * self.repeats),
            parameters=size,
        )


class _Stack:
    """Parameters [N · R, ...] of all models, those of node 0 first, and what they are trained on."""

    def __init__(self, task: TokenLabels, run: Run) -> None:
        self.task, self.run = task, run
        starts = []
        self.rules, tests = [], []
        for i in range(task.repeats):
            with seeded(run.generator("model", i).initial_seed(), run.device):
                self.net = task.model(tokens=task.data.tokens, length=task.data.length)
            starts.append({name: p.detach() for name, p in self.net.named_parameters()})
            self.rules.append(task.data.rules(run.generator("rules", i)))
            tests.append(task.data.sequences(task.test_size, self.rules[i], run.generator("test", i)))
        if any(True for _ in self.net.buffers()):
            raise ValueError("a model with buffers cannot be stacked")
        self.net.to("meta")  # from here on only its shape counts
        self.params = {
            name: torch.stack([start[name] for start in starts])
            .repeat(task.nodes, *[1] * p.dim())
            .to(run.device, run.dtype or torch.float32)
            .requires_grad_()
            for name, p in self.net.named_parameters()
        }
        self.test = tuple(torch.stack(part).to(run.device) for part in zip(*tests, strict=True))
        self.batches: tuple[Tensor, ...] = ()

    def draw(self, t: int) -> None:
        """The sequences of a round, [z, N · R, batch, length]."""
        task = self.task
        shape = (task.local_steps, task.nodes, task.batch_size, task.data.length)
        count = task.local_steps * task.nodes * task.batch_size
        drawn = [
            task.data.sequences(count, self.rules[i], self.run.generator(f"round {i}", t))
            for i in range(task.repeats)
        ]
        self.batches = tuple(
            torch.stack([part.view(shape) for part in parts], dim=2).flatten(1, 2).to(self.run.device)
            for parts in zip(*drawn, strict=True)
        )

    def gradient(self, node: int, step: int) -> float:
        """Gradients of all models; their mean loss."""
        x, y = (part[step] for part in self.batches)
        scores = self._scores(self.params, x)
        loss = nn.functional.cross_entropy(scores.flatten(0, 2), y.flatten())
        loss = loss * len(x)  # the mean loss of each model, summed
        found = torch.autograd.grad(loss, list(self.params.values()))
        for p, g in zip(self.params.values(), found, strict=True):
            p.grad = g
        return loss.item() / len(x)

    @torch.no_grad()
    def measure(self) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, accuracy and accuracy on rare tokens of the server models, [R] each."""
        x, y = self.test
        params = {name: p[: self.task.repeats] for name, p in self.params.items()}
        scores = self._scores(params, x).double()
        loss = nn.functional.cross_entropy(scores.flatten(0, 2), y.flatten(), reduction="none").view(x.shape)
        right, rare = (scores.argmax(-1) == y).double(), (x >= self.task.data.tokens // 10).double()
        rare_right = (right * rare).sum((1, 2)) / rare.sum((1, 2)).clamp(min=1.0)
        return loss.mean((1, 2)), right.mean((1, 2)), rare_right

    def log(self, step: int) -> None:
        """A point of the curves."""
        loss, accuracy, _ = self.measure()
        kept = loss[loss.isfinite()]
        if len(kept):
            self.run.log(step=step, test_loss=kept.mean().item(), test_accuracy=accuracy.mean().item())

    def save(self, done: int, trainer: Trainer) -> None:
        """A checkpoint; all draws of a round follow from its number."""
        params = [p.detach().clone() for p in self.params.values()]
        self.run.save({"round": done, "params": params, "trainer": trainer.state_dict()})

    @torch.no_grad()
    def restore(self, trainer: Trainer) -> int:
        """Round to go on from."""
        state: dict[str, Any] | None = self.run.restore()
        if state is None:
            return 0
        for p, saved in zip(self.params.values(), state["params"], strict=True):
            p.copy_(saved)
        trainer.load_state_dict(state["trainer"])
        return int(state["round"])

    def _scores(self, params: dict[str, Tensor], x: Tensor) -> Tensor:
        """[models, n, length, classes] from x [models, n, length]."""
        found = vmap(lambda own, tokens: functional_call(self.net, own, (tokens,)))(params, x)
        scores: Tensor = found[..., : self.task.data.classes]
        return scores
