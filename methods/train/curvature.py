"""The diagonal of a Hessian by random signs, and what optimizers that divide by it have in common."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["CurvatureOptimizer", "Probe", "hessian_diagonal", "require_finite", "signs"]

Probe = Callable[[Tensor], Tensor]
"""A parameter -> a vector z of its shape and type, of independent signs ±1."""


def signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent signs ±1 (Rademacher) in the shape, type and place of `like`; drawn where the generator is."""
    drawn = torch.empty(like.shape, dtype=like.dtype, device=generator.device)
    return drawn.bernoulli_(0.5, generator=generator).mul_(2).sub_(1).to(like.device)


def hessian_diagonal(params: Sequence[Tensor], probe: Probe, samples: int = 1) -> list[Tensor]:
    """Hutchinson's estimate of the Hessian's diagonal: the mean over `samples` of z * (H z).

    Args:
        params: their `.grad` must carry a graph (`loss.backward(create_graph=True)`).
        probe: draws z, one parameter after the other.
        samples: number of vectors z, at least 1.

    Returns:
        One tensor for each parameter, of its shape, with signs as they come.

    Raises:
        RuntimeError: no gradient carries a graph.

    >>> x = torch.tensor([0.5, 2.0], requires_grad=True)
    >>> Q = torch.tensor([[2.0, 1.0], [1.0, -3.0]])
    >>> (x @ Q @ x / 2).backward(create_graph=True)
    >>> hessian_diagonal([x], lambda p: torch.tensor([1.0, -1.0]))[0].tolist()
    [1.0, -4.0]
    """
    linked = [p for p in params if p.grad is not None and p.grad.requires_grad]
    if not linked:
        raise RuntimeError(
            "no gradient carries a graph: this step needs closure(create_graph=True), that is "
            "loss.backward(create_graph=True)"
        )
    gradients = [p.grad for p in linked if p.grad is not None]
    estimates = [torch.zeros_like(p) for p in params]
    for left in reversed(range(samples)):
        vectors = [probe(p) for p in params]
        weights = [
            z for p, z in zip(params, vectors, strict=True) if p.grad is not None and p.grad.requires_grad
        ]
        products = torch.autograd.grad(
            gradients, list(params), weights, retain_graph=left > 0, materialize_grads=True, allow_unused=True
        )
        torch._foreach_addcmul_(estimates, list(products), vectors, value=1 / samples)
    return estimates


def require_finite(what: str, tensors: Sequence[Tensor]) -> None:
    """Raise FloatingPointError if a number is not finite, or too large for its square to be summed."""
    if tensors:
        device = tensors[0].device
        norm = torch.stack([part.to(device) for part in torch._foreach_norm(list(tensors))]).norm()
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the {what} is not finite: nothing was changed")


class CurvatureOptimizer(torch.optim.Optimizer):
    """Base of optimizers that divide by an estimate of the Hessian's diagonal, renewed every `lazy_hessian` steps.

    Steps count from 1; the estimate is due at steps 1, 1 + k, 1 + 2k, ... A parameter takes part from the first of
    these at which it has a gradient. The state is made of tensors and numbers in `state_dict()`; random signs come
    from `generator` (whose state is the caller's to save), from `probe`, or, with neither, from a generator that is
    seeded with `seed` and the step, so that nothing has to be saved.
    """

    settings: tuple[str, ...] = ("lazy_hessian", "n_samples")  # the same for all groups

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        generator: torch.Generator | None,
        probe: Probe | None,
        seed: int,
    ) -> None:
        if generator is not None and probe is not None:
            raise ValueError("give a generator or a probe, not both")
        for name in ("lr", "eps", "weight_decay", "rho", "perturb_eps"):
            if not defaults.get(name, 0.0) >= 0:
                raise ValueError(f"{name} must be at least 0, not {defaults[name]}")
        for name in ("beta1", "beta2"):
            if not 0 <= defaults[name] < 1:
                raise ValueError(f"{name} must be in [0, 1), not {defaults[name]}")
        for name in ("lazy_hessian", "n_samples"):
            if not (isinstance(defaults[name], int) and defaults[name] >= 1):
                raise ValueError(f"{name} must be a whole number of at least 1, not {defaults[name]}")
        self._generator, self._probe, self._seed = generator, probe, seed
        self._estimates: dict[Tensor, Tensor] = {}
        super().__init__(params, {**defaults, "steps": 0})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; `lazy_hessian` and `n_samples` are the same for all groups.

        Raises:
            ValueError: a complex parameter, or a group that differs in these.
        """
        for name in self.settings:
            if param_group.get(name, self.defaults[name]) != self.defaults[name]:
                raise ValueError(f"{name} must be the same in all parameter groups")
        if self.param_groups:
            param_group["steps"] = self.param_groups[0]["steps"]
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.is_complex():
                self.param_groups.pop()
                raise ValueError(
                    f"{type(self).__name__} does not take complex parameters: optimize torch.view_as_real of it"
                )

    @property
    def hessian_due(self) -> bool:
        """Whether the next step renews the estimate: its gradients must then be made with `create_graph=True`."""
        return bool(self.param_groups[0]["steps"] % self.param_groups[0]["lazy_hessian"] == 0)

    # -- for subclasses --------------------------------------------------------------------------------------------

    def _used(self) -> list[Tensor]:
        """Parameters with a gradient; RuntimeError if one is sparse."""
        used = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if any(p.grad.is_sparse for p in used if p.grad is not None):
            raise RuntimeError(f"{type(self).__name__} does not take sparse gradients")
        return used

    def _look(self) -> None:
        """Estimate the diagonal if it is due, at the parameters as they are; take the gradients off their graph.

        Raises:
            FloatingPointError: gradient or estimate is not finite; nothing has changed.
        """
        used = self._used()
        self._estimates = {}
        if used and self.hessian_due:
            estimates = hessian_diagonal(
                used, self._probe or self._signs(), self.param_groups[0]["n_samples"]
            )
            self._estimates = dict(zip(used, estimates, strict=True))
        for p in used:
            p.grad = p.grad.detach() if p.grad is not None else None
        try:
            require_finite("gradient", [p.grad for p in used if p.grad is not None])
            require_finite("estimate of the Hessian's diagonal", list(self._estimates.values()))
        except FloatingPointError:
            self._estimates = {}
            raise

    def _advance(self) -> None:
        """One update of all groups with what `_look` has seen."""
        for group in self.param_groups:
            group["steps"] += 1
            for p in group["params"]:
                if p in self._estimates and not self.state[p]:
                    self.state[p].update(
                        step=0, hessian_step=0, exp_avg=torch.zeros_like(p), hessian=torch.zeros_like(p)
                    )
            params = [p for p in group["params"] if p.grad is not None and "hessian" in self.state[p]]
            if not params:
                continue
            states = [self.state[p] for p in params]
            for state in states:
                state["step"] += 1
            momenta = [state["exp_avg"] for state in states]
            torch._foreach_lerp_(momenta, [p.grad for p in params], 1 - group["beta1"])
            renewed = [p for p in params if p in self._estimates]
            if renewed:
                averages = [self.state[p]["hessian"] for p in renewed]
                self._average(averages, [self._estimates[p] for p in renewed], group)
                for p in renewed:
                    self.state[p]["hessian_step"] = self.state[p]["step"]
            if group["weight_decay"]:
                torch._foreach_mul_(params, 1 - float(group["lr"] * group["weight_decay"]))
            self._update(params, momenta, states, group)
        self._estimates = {}

    def _signs(self) -> Probe:
        if (generator := self._generator) is not None:
            return lambda p: signs(p, generator)
        made: dict[torch.device, torch.Generator] = {}
        seed = self._seed + 1_000_003 * self.param_groups[0]["steps"]

        def probe(p: Tensor) -> Tensor:
            if p.device not in made:
                made[p.device] = torch.Generator(p.device).manual_seed(seed)
            return signs(p, made[p.device])

        return probe

    def _average(self, averages: list[Tensor], estimates: list[Tensor], group: dict[str, Any]) -> None:
        """Move the averages, in place, towards something of the signed estimates, which may be overwritten."""
        raise NotImplementedError

    def _update(
        self, params: list[Tensor], momenta: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        """Move the parameters by momentum and average."""
        raise NotImplementedError
