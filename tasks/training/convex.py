"""A convex problem in the training loop: logistic regression with the gradient of all examples."""

import torch
from torch import Tensor, nn

from tasks.run import Run
from tasks.training.classification import Images
from tasks.training.examples import Batch, TensorExamples
from tasks.training.loop import Loop, Problem
from tasks.training.recipe import Method, Recipe


class LogisticRegression:
    """Mean cross-entropy of a linear classifier plus l2/2 ‖w‖², from w = 0, in double precision.

    Curve: see `tasks.training.loop.Loop`; `gradient_norm` of the whole objective at every evaluation.

    Summary: loss, train_loss (without the l2 term), train_accuracy; gradient_norm at the end.

    Args:
        data: images that have an "all" split.
        loop: how long and in what steps; a `batch_size` of at least all images makes its gradients exact.
        l2: weight of the square, >= 0.

    Raises:
        ValueError: l2 below 0.
    """

    def __init__(self, data: Images, loop: Loop, l2: float = 0.001) -> None:
        if not l2 >= 0:
            raise ValueError(f"l2 must be at least 0, not {l2}")
        self.data, self.loop, self.l2 = data, loop, l2

    def evaluate(self, method: Method, run: Run) -> None:
        """Train once and record the curves and the end."""
        images, labels = self.data.images("all").double(), self.data.labels("all")
        model = nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), int(labels.max()) + 1)).double()
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        model.to(run.device)
        everything = (images.to(run.device), labels.to(run.device))

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            inputs, targets = batch
            squares = sum(parameter.square().sum() for parameter in model.parameters())
            return nn.functional.cross_entropy(model(inputs), targets) + self.l2 / 2 * squares

        def gradient_norm(model: nn.Module) -> float:
            with torch.enable_grad():
                gradients = torch.autograd.grad(loss(model, everything), list(model.parameters()))
            return torch.cat([gradient.flatten() for gradient in gradients]).norm().item()

        def measure(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
            logits = model(batch[0])
            right = (logits.argmax(-1) == batch[1]).double().mean()
            return {"loss": nn.functional.cross_entropy(logits, batch[1]), "accuracy": right}

        examples = TensorExamples(images, labels)
        problem = Problem(
            train=examples,
            loss=loss,
            measure=measure,
            probes={"gradient_norm": gradient_norm},
            final_sets={"train": examples},
        )
        run.summary(**self.loop.fit(run, Recipe.of(method), model, problem))
