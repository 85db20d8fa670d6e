"""Sassha: a second-order optimizer that looks at gradient and curvature where the loss is sharpest.

Shin, Chung, Kim, Lee: Sassha: Sharpness-aware Adaptive Second-order Optimization with Stable Hessian Approximation
(ICML 2025).
"""

from collections.abc import Callable, Iterable
from math import cos, pi
from typing import Any, Literal

import torch
from torch import Tensor

from methods.train.curvature import CurvatureOptimizer, Probe
from methods.train.sam import climb, restore

__all__ = ["MSassha", "Sassha"]

Shape = Literal["constant", "proportion", "linear", "cosine"]


class _Preconditioned(CurvatureOptimizer):
    """x -= lr · m̄ / (D̄ + ε), where D̄ is the average of |diagonal| to the power α."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        hessian_power: float,
        lazy_hessian: int,
        n_samples: int,
        generator: torch.Generator | None,
        probe: Probe | None,
        seed: int,
        **others: Any,
    ) -> None:
        if not hessian_power >= 0:
            raise ValueError(f"hessian_power must be at least 0, not {hessian_power}")
        defaults: dict[str, Any] = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": eps}
        defaults |= {"weight_decay": weight_decay, "hessian_power": hessian_power}
        defaults |= {"lazy_hessian": lazy_hessian, "n_samples": n_samples, **others}
        super().__init__(params, defaults, generator, probe, seed)

    def _average(self, averages: list[Tensor], estimates: list[Tensor], group: dict[str, Any]) -> None:
        torch._foreach_abs_(estimates)
        torch._foreach_lerp_(averages, estimates, 1 - group["beta2"])

    def _update(
        self, params: list[Tensor], momenta: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        beta1, beta2, power = group["beta1"], group["beta2"], group["hessian_power"]
        averages = [state["hessian"] for state in states]
        scales = torch._foreach_sqrt(averages) if power == 0.5 else torch._foreach_pow(averages, power)
        corrections = [(1 - beta2 ** state["hessian_step"]) ** power for state in states]
        torch._foreach_div_(scales, corrections)
        torch._foreach_add_(scales, group["eps"])
        rates = [-float(group["lr"]) / (1 - beta1 ** state["step"]) for state in states]
        torch._foreach_addcdiv_(params, momenta, scales, rates)


class Sassha(_Preconditioned):
    r"""Sassha: gradient and Hessian diagonal are taken at x^ = x + ρ ∇f(x)/‖∇f(x)‖, on the same batch.

    With g = ∇f(x^) and h = |ẑ * (∇²f(x^) ẑ)| for random signs ẑ (averaged over `n_samples` before the absolute value),
    h being renewed at steps 1, 1 + k, 1 + 2k, ... only:

        m = β₁ m + (1 - β₁) g,    D = β₂ D + (1 - β₂) h (at these steps),
        x = (1 - lr · weight_decay) x - lr · m/(1 - β₁ᵗ) / ((D/(1 - β₂ᵗ'))^α + ε),

    where t counts the steps, and t' is t at the last renewal. As D has had only ⌈t/k⌉ terms, but is divided as after
    t, the scale is too small by about √(k) at first; learning rates are tuned with this.

    `step(closure)` calls `closure()` at x and `closure(create_graph)` at x^. The closure clears the gradients,
    computes the loss, calls `loss.backward(create_graph=create_graph)` and returns the loss. Or step by step::

        loss.backward()
        optimizer.perturb()                                      # to x^, gradients cleared
        loss_there.backward(create_graph=optimizer.hessian_due)  # the same batch
        optimizer.unperturb()                                    # renews h if it is due, then back to x
        optimizer.step()

    The running statistics of batch normalization should move in the first pass only. Attention needs a kernel that
    can be differentiated twice (`torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`).

    Args:
        params: real tensors or groups of them; groups may differ in all that follows up to `adaptive`.
        lr: >= 0.
        rho: ρ >= 0.
        betas: β₁, β₂ in [0, 1).
        eps: ε >= 0.
        weight_decay: decoupled, >= 0; the authors' scripts give theirs divided by the learning rate.
        hessian_power: α >= 0; 1 leaves out the square root.
        perturb_eps: added to ‖∇f(x)‖, >= 0.
        adaptive: x^ = x + ρ x² ∇f(x)/‖ |x| ∇f(x) ‖ (ASAM).
        lazy_hessian: k >= 1.
        n_samples: vectors of signs an estimate, >= 1.
        power_schedule: how α goes from `hessian_power` to `hessian_power_end`: "constant" stays, "proportion" as the
            learning rate falls from its largest value so far to 0, "linear" and "cosine" over `total_steps`.
        hessian_power_end: last α.
        total_steps: planned number of steps.
        restore_before_hvp: go back to x *before* the Hessian is multiplied, as the authors' code does. Autograd then
            mixes activations of x^ with parameters of x: the result is the Hessian of neither point.
        generator: source of the signs; or
        probe: (parameter) -> signs of its shape; or
        seed: of signs that depend on it and on the step.

    Raises:
        ValueError: a hyperparameter out of its range, a complex parameter.

    Source: Algorithm 1 of the paper; defaults as in the authors' class.

    >>> w = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    >>> optimizer = Sassha([w], lr=0.1, rho=0.1)
    >>> def closure(create_graph=False):
    ...     optimizer.zero_grad()
    ...     loss = (w**4 / 4).sum()
    ...     loss.backward(create_graph=create_graph)
    ...     return loss
    >>> optimizer.step(closure).item(), round(w.item(), 12)
    (0.25, 0.930144283902)
    """

    settings = ("lazy_hessian", "n_samples", "power_schedule", "total_steps", "restore_before_hvp")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.15,
        rho: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-4,
        weight_decay: float = 0.0,
        hessian_power: float = 0.5,
        perturb_eps: float = 1e-12,
        adaptive: bool = False,
        lazy_hessian: int = 10,
        n_samples: int = 1,
        power_schedule: Shape = "constant",
        hessian_power_end: float = 1.0,
        total_steps: int | None = None,
        restore_before_hvp: bool = False,
        generator: torch.Generator | None = None,
        probe: Probe | None = None,
        seed: int = 0,
    ) -> None:
        if power_schedule not in ("constant", "proportion", "linear", "cosine"):
            raise ValueError(
                f"power_schedule must be constant, proportion, linear or cosine, not {power_schedule!r}"
            )
        if power_schedule in ("linear", "cosine") and not total_steps:
            raise ValueError(f"power_schedule={power_schedule} needs total_steps")
        self._moved: list[tuple[Tensor, Tensor]] = []
        self._stage: Literal["start", "perturbed", "seen"] = "start"
        others: dict[str, Any] = {"rho": rho, "perturb_eps": perturb_eps, "adaptive": adaptive}
        others |= {"power_schedule": power_schedule, "total_steps": total_steps, "largest_lr": None}
        others |= {"first_power": hessian_power, "last_power": hessian_power_end}
        others |= {"restore_before_hvp": restore_before_hvp}
        super().__init__(
            params, lr, betas, eps, weight_decay, hessian_power, lazy_hessian, n_samples,
            generator, probe, seed, **others,
        )  # fmt: skip

    def perturb(self) -> None:
        """From x to x^, by the gradients, which are cleared.

        Raises:
            RuntimeError: called twice; a gradient is missing or sparse.
            FloatingPointError: the gradient is not finite; nothing is changed.
        """
        if self._stage == "perturbed":
            raise RuntimeError("perturb() was called twice: unperturb() comes first")
        if not self._used():
            raise RuntimeError("perturb() needs gradients: call loss.backward() first")
        self._moved = climb(self.param_groups)
        self._stage = "perturbed"
        self.zero_grad(set_to_none=True)

    def unperturb(self) -> None:
        """See the gradients at x^ and, if `hessian_due`, the Hessian's diagonal there; then back to x, exactly.

        Raises:
            RuntimeError: `perturb()` was not called; a gradient carries no graph where it must, or is sparse.
            FloatingPointError: gradient or diagonal is not finite; x and the state are as before the step.
        """
        if self._stage != "perturbed":
            raise RuntimeError("unperturb() needs perturb() before it")
        self._stage = "start"
        try:
            if self.param_groups[0]["restore_before_hvp"]:
                restore(self._moved)
            self._look()
        finally:
            restore(self._moved)
            self._moved = []
        self._stage = "seen"

    def step(self, closure: Callable[..., Any] | None = None) -> Any:
        """One update; with a closure all of it, else what follows on `unperturb()`. Returns the loss at x.

        Raises:
            RuntimeError: neither a closure nor `perturb()` and `unperturb()` before; and as these.
            FloatingPointError: gradient or diagonal is not finite; parameters and state are as before.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            if self._used():
                self.perturb()
                try:
                    with torch.enable_grad():
                        closure(create_graph=self.hessian_due)
                except BaseException:  # interrupted: no perturbed point stays in the parameters
                    restore(self._moved)
                    self._moved, self._stage = [], "start"
                    raise
                self.unperturb()
        if self._stage != "seen" and closure is None:
            raise RuntimeError("Sassha needs step(closure), or perturb() and unperturb() before step()")
        self._stage = "start"
        with torch.no_grad():
            for group in self.param_groups:
                self._set_power(group)
            self._advance()
        return loss

    @staticmethod
    def _set_power(group: dict[str, Any]) -> None:
        first, last = group["first_power"], group["last_power"]
        group["largest_lr"] = (
            group["lr"] if group["largest_lr"] is None else max(group["largest_lr"], group["lr"])
        )
        match group["power_schedule"]:
            case "proportion":
                share = 1 - group["lr"] / group["largest_lr"] if group["largest_lr"] else 0.0
            case "linear":
                share = min(1.0, group["steps"] / group["total_steps"])
            case "cosine":
                share = (1 - cos(pi * min(1.0, group["steps"] / group["total_steps"]))) / 2
            case _:
                return
        group["hessian_power"] = first + (last - first) * share


class MSassha(_Preconditioned):
    r"""M-Sassha: Sassha with one gradient a step, taken at x - ρ m/‖m‖ where m is the momentum of the last step.

    With g and h at that point, all else is as in `Sassha`. Between steps the parameters *are* at that point; `eval()`
    takes them to x, `train()` back. Call `eval()` before the model is measured or saved, and `train()` afterwards.

    `step(closure)` calls `closure(create_graph)` once. `step()` takes the gradients as they are, which must carry a
    graph if `hessian_due`.

    Args:
        rho: ρ >= 0, the same for all groups.
        others: as `Sassha`.

    Raises:
        ValueError: a hyperparameter out of its range, a complex parameter.

    Source: the paper's variant with the momentum's direction; defaults and order of operations as in the authors' file,
    which cannot run as published.

    >>> w = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    >>> optimizer = MSassha([w], lr=0.1, weight_decay=0.0)
    >>> (w**4 / 4).sum().backward(create_graph=True)
    >>> optimizer.step()
    >>> optimizer.eval(); x = w.item()
    >>> optimizer.train(); round(x, 6), round(x - w.item(), 6)
    (0.942268, 0.3)
    """

    settings = ("lazy_hessian", "n_samples", "rho")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.15,
        rho: float = 0.3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-4,
        weight_decay: float = 1e-2,
        hessian_power: float = 0.5,
        perturb_eps: float = 1e-12,
        lazy_hessian: int = 10,
        n_samples: int = 1,
        generator: torch.Generator | None = None,
        probe: Probe | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, hessian_power, lazy_hessian, n_samples,
            generator, probe, seed, rho=rho, perturb_eps=perturb_eps, shifted=False,
        )  # fmt: skip

    @torch.no_grad()
    def eval(self) -> None:
        """Take the parameters to x. Does nothing if they are there."""
        if self.param_groups[0]["shifted"]:
            for p, state in self._shifting():
                p.copy_(state.pop("point"))
            self._mark(False)

    @torch.no_grad()
    def train(self) -> None:
        """Take the parameters from x to where the next gradient is taken. Does nothing if they are there."""
        if self.param_groups[0]["shifted"]:
            return
        found = self._shifting()
        momenta = [state["exp_avg"] for _, state in found]
        if not momenta:
            return
        norm = (
            torch.stack([part.to(momenta[0].device) for part in torch._foreach_norm(momenta)]).norm().item()
        )
        group = self.param_groups[0]
        for p, state in found:
            state["point"] = p.detach().clone()
            p.sub_(state["exp_avg"], alpha=group["rho"] / (norm + group["perturb_eps"]))
        self._mark(True)

    def step(self, closure: Callable[..., Any] | None = None) -> Any:
        """One update; returns the loss where the gradient is taken.

        Raises:
            RuntimeError: no gradients; a gradient carries no graph where it must, or is sparse.
            FloatingPointError: gradient or diagonal is not finite; parameters and state are as before.
        """
        loss = None
        if closure is not None:
            self.train()
            with torch.enable_grad():
                loss = closure(create_graph=self.hessian_due)
        elif not self._used():
            raise RuntimeError("MSassha needs step(closure), or gradients before step()")
        self._look()
        with torch.no_grad():
            self.eval()
            self._advance()
            self.train()
        return loss

    def _shifting(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """Parameters with momentum, and their state."""
        return [
            (p, self.state[p])
            for group in self.param_groups
            for p in group["params"]
            if "exp_avg" in self.state.get(p, {})
        ]

    def _mark(self, shifted: bool) -> None:
        for group in self.param_groups:
            group["shifted"] = shifted
