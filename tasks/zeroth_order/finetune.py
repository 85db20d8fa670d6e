"""Fine-tuning a language model from loss values alone: forward passes, no gradient."""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tasks.language.prompted import Prompted
from tasks.run import Run
from tasks.zeroth_order.interface import Method

CHECKPOINT_SECONDS = 60.0


class Source(Protocol):
    """Where the classifier comes from: `tasks.language.prompted.CachedTop` or `WholeModel`."""

    def load(self, run: Run) -> Prompted: ...


class FineTune:
    """Low-rank adapters of a prompted classifier, trained on minibatches of its cross-entropy.

    Batches, directions and the adapters' start are the run's: two methods with one seed see the same. All
    values of one step use one minibatch.

    Curves: `loss` (the value that the step returned, averaged over the steps since the last point) and, at
    `eval_every`-th steps, `train_loss`, `dev_loss`, `dev_accuracy` on all examples.

    Summary: the same at the start (`initial_...`) and at the end (`final_...`), and `tail_loss`, the mean of the
    steps' values over the last tenth of the steps.

    Args:
        source: the classifier.
        steps: number of updates.
        batch_size: examples in a minibatch, drawn without replacement in each pass over the data.
        rank, alpha: adapters' rank r and scale alpha / r.
        targets: names of the linear layers that get an adapter.
        log_every, eval_every: steps between points of the curves.
    """

    def __init__(
        self,
        source: Source,
        steps: int,
        batch_size: int,
        rank: int,
        alpha: float,
        targets: Sequence[str],
        log_every: int,
        eval_every: int,
    ) -> None:
        if steps < 10 or batch_size < 1:
            raise ValueError("steps must be at least 10 and batch_size at least 1")
        self.source, self.steps, self.batch_size = source, steps, batch_size
        self.rank, self.alpha, self.targets = rank, alpha, list(targets)
        self.log_every, self.eval_every = log_every, eval_every

    def evaluate(self, method: Method, run: Run) -> None:
        """Train and record the losses."""
        classifier = self.source.load(run)
        params = self._adapt(classifier, run)
        directions = run.generator("directions")
        optimizer = method(params, generator=directions)
        order = run.generator("batches")
        batches = _batches(len(classifier.labels["train"]), self.batch_size, order)

        first, values, initial = 0, [], self._look(classifier)
        if state := run.restore():
            first, values = state["step"], state["values"]
            with torch.no_grad():
                for p, value in zip(params, state["params"], strict=True):
                    p.copy_(value)
            optimizer.load_state_dict(state["optimizer"])
            directions.set_state(state["directions"])
            for _ in range(first):
                next(batches)
        else:
            run.log(step=0, loss=initial["train_loss"], **initial)
        saved = time.monotonic()
        for step in run.track(range(first, self.steps), total=self.steps - first):
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                run.save(
                    {
                        "step": step,
                        "values": values,
                        "params": [p.detach() for p in params],
                        "optimizer": optimizer.state_dict(),
                        "directions": directions.get_state(),
                    }
                )
                saved = time.monotonic()
            batch = next(batches).to(run.device)
            target = classifier.labels["train"][batch]

            def closure(batch: Tensor = batch, target: Tensor = target) -> Tensor:
                return nn.functional.cross_entropy(classifier("train", batch), target)

            values.append(optimizer.step(closure).item())
            if not math.isfinite(values[-1]):
                raise FloatingPointError(f"the loss is {values[-1]} at step {step}")
            done = step + 1
            looked = self._look(classifier) if done % self.eval_every == 0 and done < self.steps else {}
            if done % self.log_every == 0 and done < self.steps:
                recent = values[-self.log_every :]
                run.log(step=done, loss=sum(recent) / len(recent), **looked)
        final = self._look(classifier)
        recent = values[-self.log_every :]
        run.log(step=self.steps, loss=sum(recent) / len(recent), **final)
        tail = values[-max(1, self.steps // 10) :]
        run.summary(
            tail_loss=sum(tail) / len(tail),
            parameters=sum(p.numel() for p in params),
            **{f"initial_{name}": value for name, value in initial.items()},
            **{f"final_{name}": value for name, value in final.items()},
        )

    def _adapt(self, classifier: Prompted, run: Run) -> list[Tensor]:
        """Inject the adapters; PEFT draws their start from the global generator, so that one is set aside."""
        from peft import LoraConfig, inject_adapter_in_model

        config = LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=self.targets, lora_dropout=0.0)
        with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
            torch.manual_seed(int(torch.randint(2**31, (), generator=run.generator("adapters"))))
            inject_adapter_in_model(config, classifier.model)
        return [p for name, p in classifier.named_parameters() if "lora_" in name]

    @torch.no_grad()
    def _look(self, classifier: Prompted) -> dict[str, float]:
        """Losses and accuracy on all examples."""
        found: dict[str, Any] = {}
        for split in ("train", "dev"):
            target = classifier.labels[split]
            parts = torch.arange(len(target), device=target.device).split(self.batch_size)
            logits = torch.cat([classifier(split, part) for part in parts])
            found[f"{split}_loss"] = nn.functional.cross_entropy(logits, target).item()
            found[f"{split}_accuracy"] = (logits.argmax(-1) == target).float().mean().item()
        del found["train_accuracy"]
        return found


def _batches(examples: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless minibatches: a fresh order of all examples for each pass, the rest of a pass dropped."""
    if size > examples:
        raise ValueError(f"batch_size {size} is larger than the {examples} training examples")
    while True:
        order = torch.randperm(examples, generator=generator)
        yield from order.split(size)[: examples // size]
