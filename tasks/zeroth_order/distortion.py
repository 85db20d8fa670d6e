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
    """max(max_{j != target} Z_j - Z_target, kappa) + penalty |x| for changes x of images, with logits Z.

    After Carlini and Wagner (2017), Section IV.A, as arXiv 2412.05204 has it; no pixel is clipped. Each image goes
    through the model on its own, so that its numbers do not depend on the others.

    Args:
        model: images [n, 1, h, w] -> logits [n, 10].
        images: [R, 1, h, w].
        targets: class that each is to be taken for.
        kappa, penalty: see above.
    """

    def __init__(
        self, model: nn.Module, images: Tensor, targets: list[int], kappa: float, penalty: float
    ) -> None:
        self.model, self.images, self.targets = model, images, targets
        self.kappa, self.penalty = kappa, penalty
        # added to the logits: nothing but the target class is out of the running for the largest other one
        self.out = torch.zeros(len(targets), 1, 10, device=images.device, dtype=images.dtype)
        self.place = torch.tensor(targets, device=images.device).reshape(-1, 1, 1)
        self.out.scatter_(2, self.place, -torch.inf)

    @torch.no_grad()
    def margins(self, points: Tensor) -> Tensor:
        """How far each changed image is from its target class, [R, n] of points [R, n, d]; at most kappa: it is taken
        for it."""
        changed = self.images.unsqueeze(1) + points.to(self.images.dtype).view(
            *points.shape[:2], *self.images.shape[1:]
        )
        logits = torch.stack([self.model(own) for own in changed])
        own = logits.gather(2, self.place.expand(-1, logits.shape[1], 1)).squeeze(2)
        return ((logits + self.out).amax(2) - own).to(points.dtype)

    def __call__(self, points: Tensor) -> Tensor:
        """Losses, [R, n]."""
        return self.margins(points).clamp_min(self.kappa) + self.penalty * torch.linalg.vector_norm(
            points, dim=-1
        )


class LeastDistortion:
    """Attacks test images one by one towards their least likely class, each for `steps` updates from no change.

    Seed s attacks the s-th block of `images` images of one fixed order: seeds share no image, as long as there are
    blocks. The result of an attack is the smallest change among the successful iterates.

    Rows (unit `image`):
        index, label, target: which test image, its class, the class it is to be taken for.
        overflow: the method gave up with a FloatingPointError on this image or one of its batch.
        success: whether any iterate succeeds.
        norm: Euclidean norm of the smallest successful change, in the classifier's pixel units; None if none.
        r2: 1 - norm^2 over the sum of squared deviations of the image's pixels from their mean; None if none.
        norm_step: the step (from 1) of that iterate; first_step: the first successful step; None if none.
        score: norm, or where no iterate succeeds the diagonal of the box of images.

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
        batch: images that are attacked at once; it changes no number, but an overflow ends the attack on all of them.
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
        batch: int = 10,
        points: int = 100,
    ) -> None:
        if images < 1 or steps < 1 or batch < 1:
            raise ValueError("images, steps and batch must be at least 1")
        self.data, self.classifier, self.images, self.steps = data, classifier, images, steps
        self.penalty, self.kappa, self.span, self.held_out = penalty, kappa, span, held_out
        self.batch, self.points = batch, points

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
        while len(rows) < self.images:
            block = list(range(len(rows), min(len(rows) + self.batch, self.images)))
            images = (self.span * (found.test_images[[chosen[i] for i in block]] - 0.5)).to(run.device)
            with torch.no_grad():
                targets = [int(model(image.unsqueeze(0))[0].argmin()) for image in images]
            loss = DistortionLoss(model, images, targets, self.kappa, self.penalty)
            path, paid, overflow = self._attack(method, loss, run, block)
            values += paid
            for i, target, (row, score) in zip(block, targets, self._judge(loss, path), strict=True):
                label = int(found.test_labels[chosen[i]])
                facts = {"i": i, "index": chosen[i], "label": label, "target": target, "overflow": overflow}
                rows.append(facts | row)
                scores.append(score)
            if run.due():
                run.save({"rows": rows, "scores": scores, "values": values})
        run.rows("image", rows)
        curve = np.stack(scores)
        for step in np.unique(np.linspace(1, self.steps, self.points).round().astype(int)):
            now = curve[:, step - 1]
            rate = float((now < self._diagonal(found.test_images[0])).mean())
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
        """Length of the diagonal of the box of images."""
        return self.span * math.sqrt(image.numel())

    def _attack(
        self, method: Method, loss: DistortionLoss, run: Run, block: list[int]
    ) -> tuple[Tensor, int, bool]:
        """The iterates [R, T, d] (infinite after an overflow), function values paid for, and whether it overflowed."""
        x = torch.zeros(len(block), loss.images[0].numel(), dtype=torch.float64, device=run.device)
        x.requires_grad_()
        optimizer = method([x], generator=[run.generator("directions", i) for i in block])
        path = torch.full((len(x), self.steps, x.shape[1]), torch.inf, dtype=x.dtype, device=run.device)
        paid = 0

        def counted(points: Tensor) -> Tensor:
            nonlocal paid
            paid += points.shape[:-1].numel()
            return loss(points)

        for step in run.track(range(self.steps), total=self.steps):
            try:
                optimizer.step(batched=counted)
            except FloatingPointError:
                return path, paid, True
            path[:, step] = x.detach()
        return path, paid, False

    def _judge(self, loss: DistortionLoss, paths: Tensor) -> list[tuple[dict[str, Any], np.ndarray]]:
        """Each image's row and its score after every step, from the iterates [R, T, d]."""
        finite = paths.isfinite().all(-1)
        margins = torch.cat([loss.margins(part) for part in paths.split(100, dim=1)], dim=1)
        fell = finite & (margins <= self.kappa)
        norms = torch.where(fell, torch.linalg.vector_norm(paths, dim=-1), torch.inf)
        found = []
        for image, hits, norm in zip(loss.images, fell.cpu(), norms.cpu(), strict=True):
            score = norm.cummin(0).values.clamp_max(self._diagonal(image))
            row: dict[str, Any] = {"success": bool(hits.any()), "score": score[-1].item()}
            row |= dict.fromkeys(("norm", "r2", "norm_step", "first_step"))
            if row["success"]:
                best = int(norm.argmin())
                deviation = (image - image.mean()).double().square().sum().item()
                row |= {"norm": norm[best].item(), "r2": 1 - norm[best].item() ** 2 / deviation}
                row |= {"norm_step": best + 1, "first_step": int(hits.nonzero()[0]) + 1}
            found.append((row, score.numpy()))
        return found
