"""How sharp a minimum is: the Hessian of a mean loss, seen through its products with vectors."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tasks.run import Run
from tasks.training.examples import Batch, Examples, count, to_device
from tasks.training.recipe import trainable


class Hessian:
    """Second derivatives of a model's mean loss over batches, by its trainable parameters as they are.

    Args:
        model: in the mode (`train` or `eval`) in which it is to be looked at.
        loss: (model, batch) -> mean loss, a scalar that can be differentiated twice.
        batches: batches and what each counts in the mean over all.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> hessian = Hessian(model, lambda m, x: m(x).square().mean() / 2, [(torch.tensor([[1.0, 2.0]]), 1.0)])
        >>> hessian.product(torch.tensor([1.0, 0.0])).tolist()  # x x'
        [1.0, 2.0]
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Batch], Tensor],
        batches: Sequence[tuple[Batch, float]],
    ) -> None:
        self.model, self.loss, self.batches = model, loss, batches
        self.parameters = trainable(model)
        self.size = sum(parameter.numel() for parameter in self.parameters)

    def product(self, vector: Tensor) -> Tensor:
        """H times a vector [size], parameters one after the other, as `model.parameters()` lists them."""
        sizes = [parameter.numel() for parameter in self.parameters]
        parts = [part.view_as(p) for part, p in zip(vector.split(sizes), self.parameters, strict=True)]
        total, weight_sum = torch.zeros_like(vector), sum(weight for _, weight in self.batches)
        for batch, weight in self.batches:
            with torch.enable_grad():
                loss = self.loss(self.model, batch)
                gradients = torch.autograd.grad(
                    loss, self.parameters, create_graph=True, materialize_grads=True
                )
                slope = sum((g * part).sum() for g, part in zip(gradients, parts, strict=True))
            products = torch.autograd.grad(slope, self.parameters, materialize_grads=True)
            total += weight / weight_sum * torch.cat([product.flatten() for product in products])
        return total

    def top_eigenvalue(self, generator: torch.Generator, tolerance: float = 1e-3) -> float:
        """The largest eigenvalue (not in absolute value), by Lanczos iterations from a random vector (ARPACK).

        Args:
            generator: of the first vector.
            tolerance: relative accuracy.

        Raises:
            scipy.sparse.linalg.ArpackNoConvergence: not reached.
        """
        from scipy.sparse.linalg import LinearOperator, eigsh

        reference = self.parameters[0]

        def product(vector: np.ndarray) -> np.ndarray:
            return self.product(torch.from_numpy(vector).to(reference).flatten()).cpu().numpy()

        dtype = np.float64 if reference.dtype == torch.float64 else np.float32
        operator = LinearOperator((self.size, self.size), matvec=product, dtype=dtype)
        first = torch.randn(self.size, generator=generator, dtype=torch.float64).numpy().astype(dtype)
        (value,) = eigsh(
            operator, k=1, which="LA", v0=first, tol=tolerance, rng=np.random.default_rng(0),
            return_eigenvectors=False,
        )  # fmt: skip
        return float(value)

    def trace(self, generator: torch.Generator, probes: int) -> float:
        """Hutchinson's estimate of the trace: mean of z'Hz over vectors z of random signs.

        Args:
            generator: of the signs.
            probes: number of vectors, at least 1.
        """
        reference = self.parameters[0]
        values = []
        for _ in range(probes):
            signs = torch.randint(0, 2, (self.size,), generator=generator) * 2 - 1
            vector = signs.to(reference)
            values.append((vector @ self.product(vector)).item())
        return sum(values) / probes


class Sharpness:
    """Largest eigenvalue and trace of the Hessian of the training loss, with dropout off, images as they are.

    Args:
        examples: number of training examples, the first of them, that the loss is the mean of; None: all.
        batch_size: examples computed at once.
        probes: vectors for the trace.
        tolerance: relative accuracy of the eigenvalue.
    """

    def __init__(
        self,
        examples: int | None = None,
        batch_size: int = 256,
        probes: int = 30,
        tolerance: float = 1e-3,
    ) -> None:
        if batch_size < 1 or probes < 1 or (examples is not None and examples < 1):
            raise ValueError("examples, batch_size and probes must be at least 1")
        self.examples, self.batch_size, self.probes, self.tolerance = examples, batch_size, probes, tolerance

    def functions(
        self,
        loss: Callable[[nn.Module, Batch], Tensor],
        examples: Examples,
        run: Run,
        weight: Callable[[Batch], float] = count,
    ) -> dict[str, Callable[[nn.Module], float]]:
        """`top_eigenvalue` and `trace` as functions of a model on `run.device`.

        Args:
            loss: (model, batch) -> mean loss.
            examples: training examples, as they are.
            run: its generators "eigenvector" and "trace" give the random vectors.
            weight: batch -> what it counts in the mean.
        """

        def hessian(model: nn.Module) -> Hessian:
            index = torch.arange(min(self.examples or len(examples), len(examples)))
            parts = [
                to_device(examples.batch(part, torch.empty(len(part), 0)), run.device)
                for part in index.split(self.batch_size)
            ]
            return Hessian(model, loss, [(part, float(weight(part))) for part in parts])

        return {
            "top_eigenvalue": lambda model: hessian(model).top_eigenvalue(
                run.generator("eigenvector"), self.tolerance
            ),
            "trace": lambda model: hessian(model).trace(run.generator("trace"), self.probes),
        }
