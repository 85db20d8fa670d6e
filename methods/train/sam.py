"""Sharpness-aware minimization (Foret, Kleiner, Mobahi, Neyshabur, ICLR 2021) around any optimizer.

Its adaptive form is ASAM (Kwon, Kim, Park, Choi, ICML 2021).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from methods.train.curvature import require_finite

__all__ = ["SAM", "climb", "restore"]


@torch.no_grad()
def climb(groups: list[dict[str, Any]]) -> list[tuple[Tensor, Tensor]]:
    """Move all parameters along their gradient: by ρ g/(‖g‖ + perturb_eps), ‖g‖ over all parameters jointly.

    Args:
        groups: `rho`, `perturb_eps` and `adaptive` (by ρ p² g/(‖ |p| g ‖ + perturb_eps) instead) of each group.

    Returns:
        Each moved parameter and a copy of what it was: `restore` takes it back to the last bit.

    Raises:
        FloatingPointError: the gradient is not finite, or too large; nothing is moved.
    """
    parts = [
        p.grad * p.detach().abs() if group["adaptive"] else p.grad
        for group in groups
        for p in group["params"]
        if p.grad is not None
    ]
    if not parts:
        return []
    device = parts[0].device
    norm = torch.stack([part.to(device) for part in torch._foreach_norm(parts)]).norm().item()
    if not norm < float("inf"):
        raise FloatingPointError("the gradient is not finite: nothing was changed")
    moved = []
    for group in groups:
        params = [p for p in group["params"] if p.grad is not None]
        if not params:
            continue
        moved += [(p, p.detach().clone()) for p in params]
        scale = group["rho"] / (norm + group["perturb_eps"])
        ways = [p.grad * p.square() if group["adaptive"] else p.grad for p in params]
        torch._foreach_add_(params, ways, alpha=scale)
    return moved


def restore(moved: list[tuple[Tensor, Tensor]]) -> None:
    """Take parameters back to where `climb` found them. Autograd does not notice."""
    if moved:
        torch._foreach_copy_([p.data for p, _ in moved], [before for _, before in moved])


class SAM(torch.optim.Optimizer):
    r"""One step of any optimizer with the gradient at the parameters plus a step of length ρ uphill.

    x^ = x + ρ ∇f(x)/‖∇f(x)‖, then `base` makes its step from x with ∇f(x^), on the same batch.

    `step(closure)` calls the closure twice; it clears the gradients, computes loss and gradients, and returns the
    loss. State and groups are those of `base`.

    Args:
        params: real tensors or groups of them.
        base: (parameter groups) -> the optimizer.
        rho: ρ >= 0.
        perturb_eps: added to the norm, >= 0.
        adaptive: ASAM.

    Raises:
        ValueError: a hyperparameter out of its range, a complex parameter.

    >>> w = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    >>> optimizer = SAM([w], lambda groups: torch.optim.SGD(groups, lr=0.1), rho=0.1)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (w**4 / 4).sum()
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item(), round(w.item(), 4)  # the gradient at 1.1 is 1.331
    (0.25, 0.8669)
    """

    def __init__(
        self,
        params: Iterable[Any],
        base: Callable[[Any], torch.optim.Optimizer],
        rho: float = 0.05,
        perturb_eps: float = 1e-12,
        adaptive: bool = False,
    ) -> None:
        if not (rho >= 0 and perturb_eps >= 0):
            raise ValueError(f"rho and perturb_eps must be at least 0, not {rho} and {perturb_eps}")
        super().__init__(params, {"rho": rho, "perturb_eps": perturb_eps, "adaptive": adaptive})
        if any(p.is_complex() for group in self.param_groups for p in group["params"]):
            raise ValueError("SAM does not take complex parameters: optimize torch.view_as_real of them")
        self.base = base(self.param_groups)
        self.param_groups, self.state = self.base.param_groups, self.base.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; returns the loss at the parameters as they were.

        Raises:
            RuntimeError: no closure; a sparse gradient.
            FloatingPointError: a gradient is not finite; parameters and state are as before.
        """
        if closure is None:
            raise RuntimeError("SAM needs a closure that computes loss and gradients: step(closure)")
        with torch.enable_grad():
            loss = closure()
        if any(p.grad is not None and p.grad.is_sparse for g in self.param_groups for p in g["params"]):
            raise RuntimeError("SAM does not take sparse gradients")
        moved = climb(self.param_groups)
        try:
            with torch.enable_grad():
                closure()
        finally:
            restore(moved)
        require_finite(
            "gradient", [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        )
        self.base.step()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to `base`."""
        if hasattr(self, "base"):
            for name in ("rho", "perturb_eps", "adaptive"):
                param_group.setdefault(name, self.defaults[name])
            self.base.add_param_group(param_group)
        else:
            super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict` of an optimizer with the same base and parameters."""
        self.base.load_state_dict(state_dict)
        self.param_groups, self.state = self.base.param_groups, self.base.state
