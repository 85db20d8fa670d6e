"""ZO-signSGD: steps along the sign of an estimated gradient (Liu et al., ICLR 2019)."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from methods.common.draws import Generators, Sampler
from methods.common.zeroth_order import Direction, ZerothOrderOptimizer


class ZOSignSGD(ZerothOrderOptimizer):
    """x_t = x_{t-1} - lr sign(g_t), with an estimate g_t of the gradient from function values.

    Source: Liu et al. (2019), Algorithm 1 with the gradient estimator of one machine.

    Args:
        params: parameters or parameter groups.
        lr: learning rate, at least 0: how far each coordinate moves.
        n_samples, mu, direction, scale_by_dim, symmetric, generator, sampler:
            see `methods.common.gradient_estimator.GradientEstimator`.
        blockwise: see `methods.common.zeroth_order.ZerothOrderOptimizer`.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> x = torch.tensor([2.0, -3.0], requires_grad=True)
        >>> optimizer = ZOSignSGD([x], lr=0.5, n_samples=100, generator=torch.Generator().manual_seed(0))
        >>> loss = optimizer.step(lambda: x.square().sum())
        >>> x.tolist()
        [1.5, -2.5]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        n_samples: int = 2,
        mu: float = 5e-3,
        direction: Direction = "sphere",
        scale_by_dim: bool = False,
        symmetric: bool = False,
        blockwise: bool = False,
        generator: Generators = None,
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr},
            n_samples=n_samples,
            mu=mu,
            direction=direction,
            scale_by_dim=scale_by_dim,
            symmetric=symmetric,
            blockwise=blockwise,
            generator=generator,
            sampler=sampler,
        )

    def update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        """Move the tensors of one group."""
        torch._foreach_sign_(grads)
        torch._foreach_add_(params, grads, alpha=-group["lr"])
