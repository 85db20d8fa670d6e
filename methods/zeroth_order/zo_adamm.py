"""ZO-AdaMM: adaptive momentum with an estimated gradient (Chen et al., NeurIPS 2019)."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from methods.common.draws import Generators, Sampler
from methods.common.zeroth_order import Direction, ZerothOrderOptimizer


class ZOAdaMM(ZerothOrderOptimizer):
    """Adam's moments of a zeroth-order gradient estimate, without bias correction.

    With an estimate g_t of the gradient from function values::

        m_t = beta1 m_{t-1} + (1 - beta1) g_t
        v_t = beta2 v_{t-1} + (1 - beta2) g_t^2
        x_t = x_{t-1} - lr m_t / (sqrt(v_t) + eps)

    Source: Chen et al. (2019), Algorithm 1, for an unconstrained problem; there `amsgrad` is True. The
    R-AdaZO authors' code compares with `amsgrad` False.

    Args:
        params: parameters or parameter groups.
        lr: learning rate, at least 0. The first step moves each coordinate by
            lr (1 - beta1) / sqrt(1 - beta2).
        betas: decay of the first and second moment, each in [0, 1).
        eps: stabiliser, at least 0.
        amsgrad: divide by the root of the largest v so far.
        eps_inside: divide by sqrt(v + eps) instead of sqrt(v) + eps.
        warmup_steps: first steps that take the second moment as 1 while it is being accumulated.
        n_samples, mu, direction, scale_by_dim, symmetric, generator, sampler:
            see `methods.common.gradient_estimator.GradientEstimator`.
        blockwise, decay_steps: see `methods.common.zeroth_order.ZerothOrderOptimizer`.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> x = torch.full((10,), 2.0, requires_grad=True)
        >>> optimizer = ZOAdaMM([x], lr=0.05, n_samples=10, generator=torch.Generator().manual_seed(0))
        >>> for _ in range(300):
        ...     loss = optimizer.step(lambda: x.square().sum())
        >>> bool(loss < 0.4)  # from 40
        True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        *,
        amsgrad: bool = False,
        eps_inside: bool = False,
        warmup_steps: int = 0,
        n_samples: int = 2,
        mu: float = 5e-3,
        direction: Direction = "sphere",
        scale_by_dim: bool = False,
        symmetric: bool = False,
        blockwise: bool = False,
        generator: Generators = None,
        sampler: Sampler | None = None,
        decay_steps: float | None = None,
    ) -> None:
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1), not {tuple(betas)}")
        if not eps >= 0:
            raise ValueError(f"eps must be at least 0, not {eps!r}")
        if not warmup_steps >= 0:
            raise ValueError(f"warmup_steps must be at least 0, not {warmup_steps!r}")
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "amsgrad": amsgrad,
            "eps_inside": eps_inside,
            "warmup_steps": warmup_steps,
        }
        super().__init__(
            params,
            defaults,
            n_samples=n_samples,
            mu=mu,
            direction=direction,
            scale_by_dim=scale_by_dim,
            symmetric=symmetric,
            blockwise=blockwise,
            generator=generator,
            sampler=sampler,
            decay_steps=decay_steps,
        )

    def squared(self, first: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """The tensors whose squares enter the second moment."""
        return grads

    def update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        """Move the tensors of one group; see the class."""
        beta1, beta2 = group["betas"]
        first, second = self.moments(params, "exp_avg", "exp_avg_sq")
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        source = self.squared(first, grads)
        torch._foreach_addcmul_(second, source, source, 1 - beta2)
        if group["amsgrad"]:
            (largest,) = self.moments(params, "max_exp_avg_sq")
            torch._foreach_maximum_(largest, second)
            second = largest
        if group["updates"] <= group["warmup_steps"]:
            torch._foreach_add_(params, first, alpha=-group["lr"])
            return
        if group["eps_inside"]:
            scale = torch._foreach_add(second, group["eps"])
            torch._foreach_sqrt_(scale)
        else:
            scale = torch._foreach_sqrt(second)
            torch._foreach_add_(scale, group["eps"])
        torch._foreach_addcdiv_(params, first, scale, -group["lr"])
