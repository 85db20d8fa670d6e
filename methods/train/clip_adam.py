"""Adam and AdaGrad whose momentum and scale both see the clipped gradient, and their norm versions.

Chezhegov, Klyukin, Semenov, Beznosikov, Gasnikov, Horváth, Takáč, Gorbunov: Clipping Improves Adam-Norm and
AdaGrad-Norm when the Noise Is Heavy-Tailed (ICML 2025).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from methods.train.clipping import (
    ClipMode,
    Scaled,
    check_clip,
    clipped,
    over_rows,
    parts,
    plan_clip,
    sum_of_squares,
)

__all__ = ["ClipAdaGrad", "ClipAdaGradNorm", "ClipAdam", "ClipAdamNorm"]


class _Clipped(torch.optim.Optimizer):
    """What the four have in common: h = clip(g, λ) of all groups, then one update of all parameters."""

    own = ("lr", "weight_decay")  # what groups may have of their own

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        check_clip(defaults["clip_mode"], defaults["clip"])
        _check(defaults, at_least_0=("lr", "weight_decay", "eta", "eps", "v_init"), above_0=("b_init",))
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its own `lr` and `weight_decay`; all else is the same for all groups.

        Raises:
            ValueError: a complex parameter, or a group that differs in more.
        """
        for name, value in param_group.items():
            if name in self.defaults and name not in self.own and value != self.defaults[name]:
                raise ValueError(f"{name} must be the same in all parameter groups")
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.is_complex():
                self.param_groups.pop()
                raise ValueError(
                    f"{type(self).__name__} does not take complex parameters: optimize torch.view_as_real of it"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have a gradient; returns what the closure returns.

        Raises:
            FloatingPointError: a gradient is not finite, or, where nothing is clipped, too large to be squared;
                parameters and state are as before.
            RuntimeError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        params: list[Tensor] = []
        gradients: list[Tensor] = []
        rates: list[float] = []
        kept: list[float] = []
        for group in self.param_groups:
            before = len(params)
            for p in group["params"]:
                if (gradient := p.grad) is not None:
                    if gradient.is_sparse:
                        raise RuntimeError(f"{type(self).__name__} does not take sparse gradients")
                    params.append(p)
                    gradients.append(gradient)
            rates += [float(group["lr"])] * (len(params) - before)
            kept += [1 - float(group["lr"] * group["weight_decay"])] * (len(params) - before)
        if params:
            self._update(params, gradients, rates, self.param_groups[0])
            if min(kept) != 1:
                torch._foreach_mul_(params, kept)
        return loss

    def _update(
        self, params: list[Tensor], gradients: list[Tensor], rates: list[float], options: Any
    ) -> None:
        raise NotImplementedError

    def _momentum(self, params: list[Tensor], h: Scaled, beta1: float) -> Scaled:
        """m = β₁ m + (1 - β₁) h from m = 0; h itself for β₁ = 0, without memory."""
        if beta1 == 0:
            return h
        momenta = self._memory(params, "exp_avg", 0.0)
        h.average_into(momenta, 1 - beta1)
        return Scaled(momenta, [1.0] * len(momenta))

    def _memory(self, params: list[Tensor], name: str, start: float) -> list[Tensor]:
        """State of that name, a tensor like each parameter."""
        memory = []
        for p in params:
            state = self.state[p]
            if name not in state:
                state[name] = torch.full_like(p, start, memory_format=torch.preserve_format)
            memory.append(state[name])
        return memory


class _Norm(_Clipped):
    """x -= lr / b · m with one number b, or one for each row."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        super().__init__(params, {**defaults, "b_squared": None})

    @property
    def scale(self) -> Tensor | None:
        """b as it stands: a scalar, or [R] with `rows`; None before the first step."""
        squared = self.param_groups[0]["b_squared"]
        return None if squared is None else squared.sqrt()

    def _update(
        self, params: list[Tensor], gradients: list[Tensor], rates: list[float], options: Any
    ) -> None:
        h = clipped(gradients, options["clip_mode"], options["clip"], options["rows"])
        m = self._momentum(params, Scaled(h, [1.0] * len(h)), options["beta1"])
        squares = sum_of_squares(h, options["rows"])
        # b belongs to no single parameter; in the group it is saved, and not cast to a parameter's type.
        old = options["b_squared"]
        old = torch.full_like(squares, options["b_init"] ** 2) if old is None else old.to(squares.device)
        new = self._next(old, squares, options)
        root = (old if options["delay"] else new).sqrt()
        roots = [over_rows(root, p) if options["rows"] else root.to(p.device) for p in params]
        torch._foreach_addcdiv_(params, m.tensors, roots, [-rate for rate in rates])
        options["b_squared"] = new

    def _next(self, old: Tensor, squares: Tensor, options: Any) -> Tensor:
        raise NotImplementedError


class ClipAdaGradNorm(_Norm):
    r"""(Clip-)M-AdaGrad-Norm and, with `delay`, (Clip-)M-AdaGradD-Norm: one step size for all parameters.

    With h_t = clip(g_t, λ):  m_t = β₁ m_{t-1} + (1 - β₁) h_t,  b_t² = b_{t-1}² + η ‖h_t‖²,
    x_{t+1} = x_t - γ/b_t m_t. With `delay`, b_t is brought up to date after the step, so that the step size does
    not depend on the noise of the current gradient.

    Args:
        params: real tensors or groups of them.
        lr: γ >= 0; groups may differ.
        clip: λ > 0; may be changed between steps in `param_groups[0]`.
        clip_mode: what is clipped: "none", "global" (all parameters jointly, the theory), "layer" (each tensor) or
            "coordinate" (each number).
        b_init: b before the first step, > 0.
        beta1: β₁ in [0, 1); 0 is AdaGrad-Norm, without momentum and without its memory.
        delay: divide by b as it was before the current gradient.
        eta: η >= 0, weight of the squares ("reweighted" AdaGrad for η != 1).
        weight_decay: decoupled, >= 0: last, parameters are multiplied by 1 - lr · weight_decay.
        rows: the first dimension of every parameter counts independent problems of R rows, each with a norm and a
            b of its own, so that thousands of small problems are one tensor.

    Raises:
        ValueError: a hyperparameter out of its range, a complex parameter.

    Source: Algorithms 1 and 2 of the paper; η as in the authors' notebook.

    >>> x = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    >>> optimizer = ClipAdaGradNorm([x], lr=0.5, clip=0.5)
    >>> x.grad = torch.tensor([3.0], dtype=torch.float64)
    >>> optimizer.step()
    >>> round(x.item(), 9), round(optimizer.scale.item() ** 2, 9)
    (0.776393202, 1.25)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        clip: float = 1.0,
        clip_mode: ClipMode = "global",
        b_init: float = 1.0,
        beta1: float = 0.0,
        delay: bool = False,
        eta: float = 1.0,
        weight_decay: float = 0.0,
        rows: bool = False,
    ) -> None:
        _check_beta("beta1", beta1)
        defaults: dict[str, Any] = {
            "lr": lr,
            "clip": clip,
            "clip_mode": clip_mode,
            "b_init": b_init,
            "beta1": beta1,
        }
        defaults |= {"delay": delay, "eta": eta, "weight_decay": weight_decay, "rows": rows}
        super().__init__(params, defaults)

    def _next(self, old: Tensor, squares: Tensor, options: Any) -> Tensor:
        return old + options["eta"] * squares


class ClipAdamNorm(_Norm):
    r"""(Clip-)Adam-Norm and, with `delay`, (Clip-)AdamD-Norm: one step size for all parameters.

    As `ClipAdaGradNorm`, with b_t² = β₂ b_{t-1}² + (1 - β₂) η ‖h_t‖². There is no bias correction and no ε; b_init
    plays their part.

    Args:
        betas: β₁ in [0, 1) and β₂ in (0, 1); β₂ None: 1 - 1/total_steps, as in the theory.
        total_steps: K, the planned number of steps, at least 2; only used if β₂ is None.
        others: as `ClipAdaGradNorm`.

    Raises:
        ValueError: a hyperparameter out of its range, a complex parameter.

    Source: Algorithms 1 and 2 of the paper.

    >>> x = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    >>> optimizer = ClipAdamNorm([x], lr=0.5, clip=0.5)
    >>> x.grad = torch.tensor([3.0], dtype=torch.float64)
    >>> optimizer.step()
    >>> round(x.item(), 9)
    0.97499062
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        clip: float = 1.0,
        clip_mode: ClipMode = "global",
        b_init: float = 1.0,
        betas: tuple[float, float | None] = (0.9, 0.999),
        total_steps: int | None = None,
        delay: bool = False,
        eta: float = 1.0,
        weight_decay: float = 0.0,
        rows: bool = False,
    ) -> None:
        beta1, beta2 = betas
        if beta2 is None:
            if total_steps is None or total_steps < 2:
                raise ValueError(f"beta2=None needs total_steps of at least 2, not {total_steps}")
            beta2 = 1 - 1 / total_steps
        _check_beta("beta1", beta1)
        _check_beta("beta2", beta2)
        defaults: dict[str, Any] = {"lr": lr, "clip": clip, "clip_mode": clip_mode, "b_init": b_init}
        defaults |= {"beta1": beta1, "beta2": beta2, "delay": delay, "eta": eta}
        super().__init__(params, {**defaults, "weight_decay": weight_decay, "rows": rows})

    def _next(self, old: Tensor, squares: Tensor, options: Any) -> Tensor:
        beta2 = options["beta2"]
        return beta2 * old + (1 - beta2) * options["eta"] * squares


class _Coordinates(_Clipped):
    """x -= lr · m / (√v + ε), number by number."""

    def _update(
        self, params: list[Tensor], gradients: list[Tensor], rates: list[float], options: Any
    ) -> None:
        plan = plan_clip(gradients, options["clip_mode"], options["clip"])
        for part in parts(params):
            self._update_part(params[part], plan.of(gradients, part), rates[part], options)

    def _update_part(self, params: list[Tensor], h: Scaled, rates: list[float], options: Any) -> None:
        raise NotImplementedError

    def _divide(
        self, params: list[Tensor], m: Scaled, squares: list[Tensor], rates: list[float], eps: float
    ) -> None:
        """p -= rate · m / (√squares + ε)."""
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, eps)
        scalars = [-rate * factor for rate, factor in zip(rates, m.factors, strict=True)]
        torch._foreach_addcdiv_(params, m.tensors, roots, scalars)


class ClipAdam(_Coordinates):
    r"""Adam on clipped gradients, coordinate by coordinate (Clip-Adam), and its delayed form (Clip-AdamD).

    With h_t = clip(g_t, λ):  m_t = β₁ m_{t-1} + (1 - β₁) h_t,  v_t = β₂ v_{t-1} + (1 - β₂) η h_t²,
    p -= lr · c_t · m_t / (√v_t + ε), where c_t = √(1 - β₂ᵗ) / (1 - β₁ᵗ), or 1 without `bias_correction`. With
    `delay`, v_t takes h_{t-1} instead of h_t (h_0 = 0). `clip_mode="none"` is Adam with this place of ε, which is not
    that of `torch.optim.Adam`.

    Args:
        params: real tensors or groups of them.
        lr: >= 0; groups may differ.
        betas: β₁, β₂ in [0, 1).
        eps: ε >= 0.
        weight_decay: decoupled, >= 0: last, parameters are multiplied by 1 - lr · weight_decay; groups may differ.
        clip: λ > 0; may be changed between steps in `param_groups[0]`.
        clip_mode: what is clipped: "none", "global" (all parameters jointly), "layer" (each tensor) or "coordinate"
            (each number).
        delay: divide by v as it was before the current gradient; needs `v_init` > 0.
        v_init: v_0 >= 0 of every coordinate.
        eta: η >= 0, weight of the squares.
        bias_correction: as above; the authors' runs of the delayed form are without it.

    Raises:
        ValueError: a hyperparameter out of its range, a complex parameter.

    Source: the authors' AdamClip and AdamClip_Delayed_Etta, whose v_0 is 1e-5. A delayed v is kept one step ahead, so
    that no earlier gradient has to be.

    >>> p = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    >>> optimizer = ClipAdam([p], lr=0.1, clip=1.0, clip_mode="layer")
    >>> p.grad = torch.tensor([3.0, -4.0], dtype=torch.float64)
    >>> optimizer.step()
    >>> [round(number, 7) for number in p.tolist()]
    [0.9000053, 2.099996]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip: float = 1.0,
        clip_mode: ClipMode = "layer",
        delay: bool = False,
        v_init: float = 0.0,
        eta: float = 1.0,
        bias_correction: bool = True,
    ) -> None:
        _check_beta("beta1", betas[0])
        _check_beta("beta2", betas[1])
        _check_delay(delay, v_init)
        defaults: dict[str, Any] = {
            "lr": lr,
            "beta1": betas[0],
            "beta2": betas[1],
            "eps": eps,
            "weight_decay": weight_decay,
        }
        defaults |= {"clip": clip, "clip_mode": clip_mode, "delay": delay, "v_init": v_init, "eta": eta}
        super().__init__(params, {**defaults, "bias_correction": bias_correction})

    def _update_part(self, params: list[Tensor], h: Scaled, rates: list[float], options: Any) -> None:
        beta1, beta2, delay = options["beta1"], options["beta2"], options["delay"]
        m = self._momentum(params, h, beta1)
        squares = self._memory(params, "exp_avg_sq", options["v_init"] * (beta2 if delay else 1.0))
        if options["bias_correction"]:
            rates = [rate * c for rate, c in zip(rates, self._corrections(params, beta1, beta2), strict=True)]
        if delay:
            self._divide(params, m, squares, rates, options["eps"])
        torch._foreach_mul_(squares, beta2)
        h.add_squares_to(squares, (1 - beta2) * options["eta"])
        del h  # the roots may take its memory
        if not delay:
            self._divide(params, m, squares, rates, options["eps"])

    def _corrections(self, params: list[Tensor], beta1: float, beta2: float) -> list[float]:
        """c_t of every parameter, which has its own number of steps."""
        for p in params:
            if "step" not in self.state[p]:
                self.state[p]["step"] = torch.zeros((), dtype=torch.float32)
        steps = [self.state[p]["step"] for p in params]
        torch._foreach_add_(steps, 1)
        counts = [step.item() for step in steps]
        factors = {t: (1 - beta2**t) ** 0.5 / (1 - beta1**t) for t in set(counts)}
        return [factors[t] for t in counts]


class ClipAdaGrad(_Coordinates):
    r"""AdaGrad on clipped gradients, coordinate by coordinate (Clip-AdaGrad), and its delayed form (Clip-AdaGradD).

    With h_t = clip(g_t, λ):  v_t = v_{t-1} + η h_t²,  p -= lr · h_t / (√v_t + ε). With `delay`, v is brought up to
    date after the step.

    Args:
        params: real tensors or groups of them.
        lr: >= 0; groups may differ.
        eps: ε >= 0.
        weight_decay: decoupled, >= 0: last, parameters are multiplied by 1 - lr · weight_decay; groups may differ.
        clip: λ > 0; may be changed between steps in `param_groups[0]`.
        clip_mode: what is clipped: "none", "global", "layer" or "coordinate", as in `ClipAdam`.
        delay: divide by v as it was before the current gradient; needs `v_init` > 0.
        v_init: v_0 >= 0 of every coordinate.
        eta: η >= 0, weight of the squares.

    Raises:
        ValueError: a hyperparameter out of its range, a complex parameter.

    Source: the authors' AdagradClip. Their delayed class steps along the previous gradient; this one follows the
    paper's delayed algorithm, which steps along the current one.

    >>> p = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> optimizer = ClipAdaGrad([p], lr=0.1, clip=1.0, clip_mode="coordinate")
    >>> p.grad = torch.tensor([3.0, -0.5])
    >>> optimizer.step()
    >>> [round(number, 6) for number in p.tolist()]
    [0.9, 2.1]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        clip: float = 1.0,
        clip_mode: ClipMode = "layer",
        delay: bool = False,
        v_init: float = 0.0,
        eta: float = 1.0,
    ) -> None:
        _check_delay(delay, v_init)
        defaults: dict[str, Any] = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "clip": clip}
        defaults |= {"clip_mode": clip_mode, "delay": delay, "v_init": v_init, "eta": eta}
        super().__init__(params, defaults)

    def _update_part(self, params: list[Tensor], h: Scaled, rates: list[float], options: Any) -> None:
        squares = self._memory(params, "sum", options["v_init"])
        if options["delay"]:
            self._divide(params, h, squares, rates, options["eps"])
        h.add_squares_to(squares, options["eta"])
        if not options["delay"]:
            self._divide(params, h, squares, rates, options["eps"])


def _check(values: dict[str, Any], at_least_0: tuple[str, ...], above_0: tuple[str, ...]) -> None:
    for name in at_least_0:
        if not values.get(name, 0.0) >= 0:
            raise ValueError(f"{name} must be at least 0, not {values[name]}")
    for name in above_0:
        if not values.get(name, 1.0) > 0:
            raise ValueError(f"{name} must be above 0, not {values[name]}")


def _check_beta(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), not {value}")


def _check_delay(delay: bool, v_init: float) -> None:
    if delay and not v_init > 0:
        raise ValueError("delay needs v_init above 0: the first step divides by its root")
