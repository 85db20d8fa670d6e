"""Black-box targeted attack that wants the smallest change of an image; the classifier's logits are seen."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tasks.run import Run
from tasks.training import distilled
from tasks.zeroth_order.interface import Method


class DistortionLoss:
    """max(max_{j != target} Z_j - Z_target, kappa) + penalty |x| for changes x [n, d] of an image, logits Z.

    After Carlini and Wagner (2017), Section IV.A, as arXiv 2412.05204 has it; no pixel is clipped.
    """

    def __init__(self, model: nn.Module, image: Tensor, target: int, kappa: float, penalty: float) -> None:
        self.model, self.image, self.target = model, image, target
        self.kappa, self.penalty = kappa, penalty
        self.others = [j for j in range(10) if j != target]

    @torch.no_grad()
    def margin(self, points: Tensor) -> Tensor:
        """How far each changed image is from the target class, [n]; at most kappa means that it is taken for it."""
        logits = self.model(self.image + points.to(self.image.dtype).view(-1, *self.image.shape))
        return (logits[:, self.others].amax(-1) - logits[:, self.target]).to(points.dtype)

    def __call__(self, points: Tensor) -> Tensor:
        """Losses, [n]."""
        return self.margin(points).clamp_min(self.kappa) + self.penalty * torch.linalg.vector_norm(
            points, dim=1
        )


class LeastDistortion:
    """Attacks test images one by one towards their least likely class, each for `steps` updates from no change.

    Seed s attacks the s-th block of `images` images of one fixed order: seeds share no image, as long as there are
    blocks. The result of an attack is the smallest change among the successful iterates.

    Rows (unit `image`):
        index, label, target: which test image, its class, the class it is to be taken for.
        success: whether any iterate succeeds.
        norm: Euclidean norm of the smallest successful change, in the classifier's pixel units; None if none.
        r2: 1 - norm^2 over the sum of squared deviations of the image's pixels from their mean; None if none.
        norm_step: the step (from 1) of that iterate; first_step: the first successful step; None if none.
        score: norm, or where no iterate succeeds the diagonal of the box of images.
        overflow: the method gave up with a FloatingPointError.

    Curves: `success_rate` and `score` of the iterates so far, means over images.

    Summary: success_rate, mean_score, mean_norm and mean_r2 over the images that fell (None if none did), test_accuracy
    (of the classifier), values_per_step.

    Args:
        data: the images.
        classifier: artifact made by `tasks.training.distilled.build`.
        images: number of images.
        steps: updates of each image.
        penalty, kappa: of the loss.
        span: grey values g enter as span (g - 1/2).
        held_out: as the classifier's.
        points: points of the curves.
    """

    def __init__(
        self,
        data: distilled.Images,
        classifier: Any,
        images: int,
        steps: int,
        penalty: float,
        kappa: float,
        span: float,
        held_out: int | None,
        points: int = 100,
    ) -> None:
        if images < 1 or steps < 1:
            raise ValueError("images and steps must be at least 1")
        self.data, self.classifier, self.images, self.steps = data, classifier, images, steps
        self.penalty, self.kappa, self.span, self.held_out = penalty, kappa, span, held_out
        self.points = points

    def evaluate(self, method: Method, run: Run) -> None:
        """Attack every image."""
        model, accuracy = distilled.load(run.artifact(self.classifier))
        model.to(run.device)
        found = distilled.parts(self.data, self.held_out)
        chosen = self._choose(len(found.test_images), run.seed)
        saved = run.restore() or {"rows": [], "scores": [], "values": 0}
        rows: list[dict[str, Any]] = saved["rows"]
        scores: list[np.ndarray] = saved["scores"]
        values: int = saved["values"]
        for i in run.track(range(len(rows), self.images), total=self.images - len(rows)):
            image = (self.span * (found.test_images[chosen[i]] - 0.5)).to(run.device)
            with torch.no_grad():
                target = int(model(image.unsqueeze(0))[0].argmin())
            loss = DistortionLoss(model, image, target, self.kappa, self.penalty)
            row, score, paid = self._attack(method, loss, run, i)
            label = int(found.test_labels[chosen[i]])
            rows.append({"i": i, "index": chosen[i], "label": label, "target": target, **row})
            scores.append(score)
            values += paid
            if run.due():
                run.save({"rows": rows, "scores": scores, "values": values})
        run.rows("image", rows)
        curve = np.stack(scores)
        for step in np.unique(np.linspace(1, self.steps, self.points).round().astype(int)):
            now = curve[:, step - 1]
            rate = float((now < self._diagonal(found.test_images)).mean())
            run.log(step=int(step), success_rate=rate, score=float(now.mean()))
        fell = [row for row in rows if row["success"]]
        run.summary(
            success_rate=len(fell) / len(rows),
            mean_score=sum(row["score"] for row in rows) / len(rows),
            mean_norm=sum(row["norm"] for row in fell) / len(fell) if fell else None,
            mean_r2=sum(row["r2"] for row in fell) / len(fell) if fell else None,
            test_accuracy=accuracy,
            values_per_step=values / self.steps / len(rows),
        )

    def _choose(self, total: int, seed: int) -> list[int]:
        """The seed's block of a fixed order; with seed 0 the images that the official code draws."""
        blocks = total // self.images
        if blocks < 1:
            raise ValueError(f"images must be at most {total}, not {self.images}")
        order = np.random.RandomState(0).permutation(total)
        first = seed % blocks * self.images
        return [int(index) for index in order[first : first + self.images]]

    def _diagonal(self, image: Tensor) -> float:
        return self.span * math.sqrt(image[-1].numel())

    def _attack(
        self, method: Method, loss: DistortionLoss, run: Run, i: int
    ) -> tuple[dict[str, Any], np.ndarray, int]:
        """The image's row, its score after each step, and the function values that were paid for."""
        x = torch.zeros(loss.image.numel(), dtype=torch.float64, device=run.device).requires_grad_()
        optimizer = method([x], generator=run.generator("directions", i))
        path = torch.full((self.steps, len(x)), torch.inf, dtype=x.dtype, device=run.device)
        paid, overflow = 0, False

        def counted(points: Tensor) -> Tensor:
            nonlocal paid
            paid += len(points)
            return loss(points)

        for step in range(self.steps):
            try:
                optimizer.step(batched=counted)
            except FloatingPointError:
                overflow = True
                break
            path[step] = x.detach()
        finite = path.isfinite().all(1)
        margins = torch.full_like(path[:, 0], torch.inf)
        if finite.any():
            margins[finite] = torch.cat([loss.margin(part) for part in path[finite].split(100)])
        norms = torch.where(margins <= self.kappa, torch.linalg.vector_norm(path, dim=1), torch.inf)
        so_far = norms.cummin(0).values.clamp_max(self._diagonal(loss.image.unsqueeze(0))).cpu().numpy()
        hits = (margins <= self.kappa).nonzero()
        row: dict[str, Any] = {"success": len(hits) > 0, "overflow": overflow, "score": float(so_far[-1])}
        row |= dict.fromkeys(("norm", "r2", "norm_step", "first_step"))
        if len(hits):
            best = int(norms.argmin())
            norm = norms[best].item()
            deviation = (loss.image - loss.image.mean()).double().square().sum().item()
            row |= {"norm": norm, "r2": 1 - norm**2 / deviation, "norm_step": best + 1}
            row |= {"first_step": int(hits[0]) + 1}
        return row, so_far, paid
