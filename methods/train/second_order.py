"""AdaHessian (Yao et al., AAAI 2021) and Sophia-H (Liu et al., ICLR 2024), with the Hessian renewed every k steps."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from methods.train.curvature import CurvatureOptimizer, Probe

__all__ = ["AdaHessian", "SophiaH"]


class _OneGradient(CurvatureOptimizer):
    """Gradient and Hessian diagonal at the parameters as they are."""

    def step(self, closure: Callable[..., Any] | None = None) -> Any:
        """One update; calls `closure(create_graph)` once, or takes the gradients as they are. Returns the loss.

        Raises:
            RuntimeError: no gradients; a gradient carries no graph where it must, or is sparse.
            FloatingPointError: gradient or diagonal is not finite; parameters and state are as before.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure(create_graph=self.hessian_due)
        elif not self._used():
            raise RuntimeError(f"{type(self).__name__} needs step(closure), or gradients before step()")
        self._look()
        with torch.no_grad():
            self._advance()
        return loss


class AdaHessian(_OneGradient):
    r"""Adam with the Hessian's diagonal in place of the gradient.

    With h = |z * (∇²f(x) z)| for random signs z, renewed at steps 1, 1 + k, ...: m = β₁ m + (1 - β₁) g,
    v = β₂ v + (1 - β₂) h², x = (1 - lr · weight_decay) x - lr · m/(1 - β₁ᵗ) / ((v/(1 - β₂ᵗ'))^(power/2) + ε), where
    t' is t at the last renewal.

    Args:
        params: real tensors or groups of them.
        lr: >= 0.
        betas: β₁, β₂ in [0, 1).
        eps: ε >= 0.
        weight_decay: decoupled, >= 0.
        hessian_power: power >= 0.
        spatial_average: h of a convolution's kernel (four dimensions) is its mean over height and width.
        lazy_hessian: k >= 1; 1 as published.
        n_samples: vectors of signs an estimate, >= 1.
        generator, probe, seed: as `methods.train.sassha.Sassha`.

    Raises:
        ValueError: a hyperparameter out of its range, a complex parameter.

    >>> w = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    >>> optimizer = AdaHessian([w], lr=0.3, eps=0.0)
    >>> (w**4 / 4).sum().backward(create_graph=True)
    >>> optimizer.step()
    >>> round(w.item(), 12)  # 1 - 0.3 · 1/3
    0.9
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.15,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-4,
        weight_decay: float = 0.0,
        hessian_power: float = 1.0,
        spatial_average: bool = True,
        lazy_hessian: int = 1,
        n_samples: int = 1,
        generator: torch.Generator | None = None,
        probe: Probe | None = None,
        seed: int = 0,
    ) -> None:
        if not hessian_power >= 0:
            raise ValueError(f"hessian_power must be at least 0, not {hessian_power}")
        defaults: dict[str, Any] = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": eps}
        defaults |= {"weight_decay": weight_decay, "hessian_power": hessian_power}
        defaults |= {"spatial_average": spatial_average, "lazy_hessian": lazy_hessian, "n_samples": n_samples}
        super().__init__(params, defaults, generator, probe, seed)

    def _average(self, averages: list[Tensor], estimates: list[Tensor], group: dict[str, Any]) -> None:
        if group["spatial_average"]:
            estimates = [
                h.abs().mean((2, 3), keepdim=True).expand_as(h) if h.ndim == 4 else h for h in estimates
            ]
        torch._foreach_mul_(averages, group["beta2"])
        torch._foreach_addcmul_(averages, estimates, estimates, value=1 - group["beta2"])

    def _update(
        self, params: list[Tensor], momenta: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        beta1, beta2 = group["beta1"], group["beta2"]
        scales = torch._foreach_div(
            [state["hessian"] for state in states], [1 - beta2 ** state["hessian_step"] for state in states]
        )
        torch._foreach_pow_(scales, group["hessian_power"] / 2)
        torch._foreach_add_(scales, group["eps"])
        rates = [-float(group["lr"]) / (1 - beta1 ** state["step"]) for state in states]
        torch._foreach_addcdiv_(params, momenta, scales, rates)


class SophiaH(_OneGradient):
    r"""Sophia with Hutchinson's estimate: steps of momentum over curvature, each number clipped to `lr`.

    With h = z * (∇²f(x) z) for random signs z, renewed at steps 1, 1 + k, ...: m = β₁ m + (1 - β₁) g,
    D = β₂ D + (1 - β₂) h, x = (1 - lr · weight_decay) x - lr · sign(m) · min(1, |m| / (γ max(D, 0) + ε)). No bias
    correction.

    Args:
        clip: γ > 0.
        others: as `AdaHessian`.

    Raises:
        ValueError: a hyperparameter out of its range, a complex parameter.

    Source: the form of the Sassha authors' code; k = 10 in the original.

    >>> w = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    >>> optimizer = SophiaH([w], lr=0.3, clip=100.0, betas=(0.0, 0.0), eps=0.0)
    >>> (w**4 / 4).sum().backward(create_graph=True)
    >>> optimizer.step()
    >>> round(w.item(), 12)  # 1 - 0.3 · 1/(100 · 3)
    0.999
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-4,
        weight_decay: float = 0.0,
        clip: float = 0.05,
        lazy_hessian: int = 1,
        n_samples: int = 1,
        generator: torch.Generator | None = None,
        probe: Probe | None = None,
        seed: int = 0,
    ) -> None:
        if not clip > 0:
            raise ValueError(f"clip must be above 0, not {clip}")
        defaults: dict[str, Any] = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": eps}
        defaults |= {"weight_decay": weight_decay, "clip": clip}
        super().__init__(
            params, {**defaults, "lazy_hessian": lazy_hessian, "n_samples": n_samples}, generator, probe, seed
        )

    def _average(self, averages: list[Tensor], estimates: list[Tensor], group: dict[str, Any]) -> None:
        torch._foreach_lerp_(averages, estimates, 1 - group["beta2"])

    def _update(
        self, params: list[Tensor], momenta: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        scales = torch._foreach_clamp_min([state["hessian"] for state in states], 0.0)
        torch._foreach_mul_(scales, group["clip"])
        torch._foreach_add_(scales, group["eps"])
        ratios = torch._foreach_div(torch._foreach_abs(momenta), scales)
        torch._foreach_clamp_max_(ratios, 1.0)
        torch._foreach_addcmul_(params, torch._foreach_sign(momenta), ratios, value=-float(group["lr"]))
