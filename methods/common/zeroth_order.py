"""Optimizers that are fed with gradients from function values."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from methods.common.draws import Generators, Sampler
from methods.common.gradient_estimator import Closure, Direction, Function, GradientEstimator


class ZerothOrderOptimizer(torch.optim.Optimizer):
    """An optimizer whose gradient is estimated from function values; subclasses say what to do with it.

    Args:
        params: parameters or parameter groups.
        defaults: options of a group, such as `lr`.
        blockwise: estimate and update one tensor after the other, so that later tensors see earlier ones
            already moved, at `evaluations` function values per tensor; False perturbs all of them jointly.
        decay_steps: s, above 0: update k = 0, 1, ... has the learning rate lr s / (s + k); None keeps it.
        n_samples, mu, direction, scale_by_dim, symmetric, generator, sampler:
            see `methods.common.gradient_estimator.GradientEstimator`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        *,
        n_samples: int,
        mu: float,
        direction: Direction,
        scale_by_dim: bool,
        symmetric: bool,
        blockwise: bool,
        generator: Generators,
        sampler: Sampler | None,
        decay_steps: float | None = None,
    ) -> None:
        self.estimator = GradientEstimator(
            n_samples=n_samples,
            mu=mu,
            direction=direction,
            scale_by_dim=scale_by_dim,
            symmetric=symmetric,
            generator=generator,
            sampler=sampler,
        )
        self.blockwise = blockwise
        if not defaults["lr"] >= 0:
            raise ValueError(f"lr must be at least 0, not {defaults['lr']!r}")
        if decay_steps is not None and not decay_steps > 0:
            raise ValueError(f"decay_steps must be above 0, not {decay_steps!r}")
        if self.estimator.draws.replicates is not None and blockwise:
            raise ValueError("replicates are updated jointly, not blockwise")
        super().__init__(params, defaults | {"decay_steps": decay_steps, "updates": 0})
        for group in self.param_groups:
            group["first_lr"] = group["lr"]

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Closure | None = None, *, batched: Function | None = None
    ) -> Tensor:
        """One update from function values: of `closure`, or of `batched`, at once.

        Args:
            closure: returns the objective (a scalar) at the parameters as they are; called once per value.
            batched: maps points [n, d] to objectives [n]; see `GradientEstimator.batched`, also for replicates.

        Returns:
            The objective before the update (the mean of the probes if symmetric); [R] for R replicates.

        Raises:
            ValueError: not exactly one of the two, or `batched` with `blockwise` and several tensors.
        """
        if (closure is None) == (batched is None):
            raise ValueError("a zeroth-order step needs either closure or batched")
        for group in self.param_groups:
            if group["decay_steps"] is not None:
                group["lr"] = group["first_lr"] / (1 + group["updates"] / group["decay_steps"])
            group["updates"] += 1
        loss, blocks = None, self._blocks()
        if batched is not None and len(blocks) > 1:
            raise ValueError("batched takes whole points: not with blockwise and several tensors")
        for block in blocks:
            tensors = [p for _, params in block for p in params]
            if closure is not None:
                value, flat = self.estimator(tensors, closure)
            else:
                assert batched is not None
                value, flat = self.estimator.batched(tensors, batched)
            loss = value if loss is None else loss
            replicates = self.estimator.draws.replicates or 1
            grads = list(torch.split(flat, [p.numel() // replicates for p in tensors], dim=-1))
            for group, params in block:
                mine = [g.reshape(p.shape).to(p.dtype) for p, g in zip(params, grads, strict=False)]
                del grads[: len(params)]
                self.update(group, params, mine)
        assert loss is not None
        return loss

    def update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        """Move the tensors of one group, given their estimated gradients; `grads` may be overwritten."""
        raise NotImplementedError

    def _blocks(self) -> list[list[tuple[dict[str, Any], list[Tensor]]]]:
        """Groups and tensors that are perturbed together."""
        whole = [(group, [p for p in group["params"] if p.requires_grad]) for group in self.param_groups]
        whole = [(group, params) for group, params in whole if params]
        if not self.blockwise:
            return [whole]
        return [[(group, [p])] for group, params in whole for p in params]

    def moments(self, params: list[Tensor], *names: str) -> list[list[Tensor]]:
        """State tensors of these names, one list per name, created as zeros."""
        for p in params:
            for name in names:
                if name not in self.state[p]:
                    self.state[p][name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return [[self.state[p][name] for p in params] for name in names]


class ZerothOrder(ZerothOrderOptimizer):
    """Any first-order rule, fed with an estimated gradient: ZO-SGD, ZO-RMSProp, ZO-Adam.

    Args:
        params: parameters or parameter groups.
        rule: called with (params, lr=lr), returns the first-order optimizer, e.g. ``torch.optim.SGD``.
            Not for a rule whose step needs a closure (`torch.optim.LBFGS`).
        lr: learning rate, at least 0.
        decay_steps: see `ZerothOrderOptimizer`.
        n_samples, mu, direction, scale_by_dim, symmetric, generator, sampler:
            see `methods.common.gradient_estimator.GradientEstimator`.

    Example:
        >>> x = torch.ones(5, requires_grad=True)
        >>> optimizer = ZerothOrder([x], torch.optim.SGD, lr=0.1, n_samples=10, scale_by_dim=True,
        ...                         generator=torch.Generator().manual_seed(0))
        >>> for _ in range(100):
        ...     loss = optimizer.step(lambda: x.square().sum())
        >>> bool(loss < 1e-3)
        True
    """

    def __init__(
        self,
        params: Iterable[Any],
        rule: Callable[..., torch.optim.Optimizer],
        lr: float = 1e-3,
        *,
        n_samples: int = 2,
        mu: float = 5e-3,
        direction: Direction = "sphere",
        scale_by_dim: bool = False,
        symmetric: bool = False,
        generator: Generators = None,
        sampler: Sampler | None = None,
        decay_steps: float | None = None,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr},
            n_samples=n_samples,
            mu=mu,
            direction=direction,
            scale_by_dim=scale_by_dim,
            symmetric=symmetric,
            blockwise=False,
            generator=generator,
            sampler=sampler,
            decay_steps=decay_steps,
        )
        self.rule = rule(self.param_groups, lr=lr)
        self._share()

    def step(  # type: ignore[override]
        self, closure: Closure | None = None, *, batched: Function | None = None
    ) -> Tensor:
        """See `ZerothOrderOptimizer.step`."""
        loss = super().step(closure, batched=batched)
        self.rule.step()
        self.rule.zero_grad(set_to_none=True)
        return loss

    def update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        """Hand the gradients to the rule, which moves all groups at once."""
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the rule's state."""
        self.rule.load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """The rule's groups and state are this optimizer's: schedulers and `state_dict` see them."""
        self.param_groups, self.state = self.rule.param_groups, self.rule.state
