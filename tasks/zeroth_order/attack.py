"""Black-box targeted attack on an image classifier: only its log-probabilities are seen."""

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tasks.data.mnist import MNIST
from tasks.run import Run
from tasks.training import mnist_cnn
from tasks.zeroth_order.interface import Method


class TargetedLoss:
    """How far an image is from being taken for the target: max_{j != target} log p_j - log p_target.

    At most 0 means that the attack has succeeded. Points are perturbations [n, d], clipped to [-limit, limit]
    and added to the image, whose grey values are clipped to [0, 1].
    """

    def __init__(self, model: nn.Module, image: Tensor, target: int, limit: float | None) -> None:
        self.model, self.image, self.target, self.limit = model, image, target, limit
        self.others = [j for j in range(10) if j != target]

    def attacked(self, points: Tensor) -> Tensor:
        """The images that the classifier gets: [n, 1, 28, 28]."""
        if self.limit is not None:
            points = points.clamp(-self.limit, self.limit)
        return (self.image + points.to(self.image.dtype).view(-1, *self.image.shape)).clamp(0, 1)

    @torch.no_grad()
    def __call__(self, points: Tensor) -> Tensor:
        """Losses [n] of perturbations [n, d]."""
        log_p = self.model(self.attacked(points))
        return log_p[:, self.others].amax(-1) - log_p[:, self.target]


class MnistAttack:
    """Attacks correctly classified test images one by one, each until it succeeds or `steps` are used up.

    Rows (unit `image`; image i is the i-th correctly classified one in an order drawn from the run's seed):
        index, label, target: which test image, its digit, the digit it is to be taken for.
        steps_to_success: updates before the loss is first at most 0; None if never.
        first_loss, last_loss: the loss at the start and where the attack ended.
        distortion: Euclidean norm of the change of the image where the attack ended.

    Curve: `success_rate` over the updates. Summary: success_rate, test_accuracy (of the classifier), steps.

    Args:
        data: the digits.
        classifier: artifact made by `tasks.training.mnist_cnn.build`.
        images: number of images.
        steps: most updates an image gets.
        limit: largest change of a grey value.
        target: "next" attacks towards (label + 1) mod 10, "least_likely" towards the least probable digit.
        points: points of the curve.
    """

    def __init__(
        self,
        data: MNIST,
        classifier: Any,
        images: int,
        steps: int,
        limit: float | None,
        target: Literal["next", "least_likely"] = "next",
        points: int = 100,
    ) -> None:
        if images < 1 or steps < 1:
            raise ValueError("images and steps must be at least 1")
        if target not in ("next", "least_likely"):
            raise ValueError(f"target must be 'next' or 'least_likely', not {target!r}")
        self.data, self.classifier, self.images, self.steps = data, classifier, images, steps
        self.limit, self.target, self.points = limit, target, points

    def evaluate(self, method: Method, run: Run) -> None:
        """Attack every image and record when it fell."""
        folder = run.artifact(self.classifier)
        model = mnist_cnn.load(folder).to(run.device)
        pictures, labels = self.data.images("test"), self.data.labels("test")
        saved = run.restore() or {"rows": []}
        rows: list[dict[str, Any]] = saved["rows"]
        chosen = self._choose(model, pictures, labels, run)
        for i in run.track(range(len(rows), self.images), total=self.images - len(rows)):
            index = chosen[i]
            image = pictures[index].to(run.device)
            label = int(labels[index])
            with torch.no_grad():
                likely = model(image.unsqueeze(0))[0]
            target = (label + 1) % 10 if self.target == "next" else int(likely.argmin())
            loss = TargetedLoss(model, image, target, self.limit)
            outcome = self._attack(method, loss, run, i)
            rows.append({"i": i, "index": index, "label": label, "target": target, **outcome})
            run.save({"rows": rows})
        run.rows("image", rows)
        hits = np.array(
            [np.inf if row["steps_to_success"] is None else row["steps_to_success"] for row in rows]
        )
        for step in np.unique(np.linspace(0, self.steps, self.points + 1).round().astype(int)):
            run.log(step=int(step), success_rate=float((hits <= step).mean()))
        run.summary(
            success_rate=float(np.isfinite(hits).mean()),
            test_accuracy=mnist_cnn.accuracy(folder),
            steps=self.steps,
        )

    def _choose(self, model: nn.Module, pictures: Tensor, labels: Tensor, run: Run) -> list[int]:
        """Indices of the first correctly classified images in a random order, looked at one at a time."""
        chosen: list[int] = []
        for index in run.rng("images").permutation(len(pictures)):
            if len(chosen) == self.images:
                break
            with torch.no_grad():
                guess = model(pictures[index].unsqueeze(0).to(run.device)).argmax()
            if int(guess) == int(labels[index]):
                chosen.append(int(index))
        return chosen

    def _attack(self, method: Method, loss: TargetedLoss, run: Run, i: int) -> dict[str, Any]:
        x = (
            torch.randn(loss.image.numel(), generator=run.generator("start", i))
            .to(run.device)
            .requires_grad_()
        )
        optimizer = method([x], generator=run.generator("directions", i))
        hit, first, value, point = None, math.nan, math.nan, x.detach()
        for step in range(self.steps + 1):
            point = x.detach().clone()
            value = (optimizer.step(batched=loss) if step < self.steps else loss(point.unsqueeze(0))).item()
            first = value if step == 0 else first
            if value <= 0:  # the loss at `point`, before the update
                hit = step
                break
        change = loss.attacked(point.unsqueeze(0))[0] - loss.image
        return {
            "steps_to_success": hit,
            "first_loss": first,
            "last_loss": value,
            "distortion": change.norm().item(),
        }
