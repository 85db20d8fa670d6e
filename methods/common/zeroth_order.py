"""Gradients from function values, and the optimizers that are fed with them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

Closure = Callable[[], Tensor | float]
Function = Callable[[Tensor], Tensor]
Sampler = Callable[[int], Tensor]
Direction = Literal["sphere", "gaussian"]


class GradientEstimator:
    """Finite differences along random directions (Nesterov and Spokoiny, 2017; R-AdaZO, Sec. 2).

    With directions u_1..u_K the estimate is ``c/K * sum_k (f(x + mu u_k) - f(x)) / mu * u_k``, and with
    `symmetric` the difference quotient is ``(f(x + mu u_k) - f(x - mu u_k)) / (2 mu)``.

    Args:
        n_samples: number of directions K, at least 1.
        mu: smoothing radius, above 0, in units of x. At equal `mu` a Gaussian probe sits sqrt(d) times
            farther away than a probe on the sphere.
        direction: "sphere" (uniform on the unit sphere) or "gaussian" (standard normal).
        scale_by_dim: c = d instead of 1; with "sphere" this makes the estimate unbiased for a linear f.
        symmetric: two-sided differences.
        generator: source of the directions; None is torch's default generator.
        sampler: ``sampler(d)`` returns the d standard normal numbers of one direction (normalised here if
            `direction` is "sphere"). Given instead of a generator, it plays fixed draws.

    Raises:
        ValueError: a value out of range, or `scale_by_dim` with "gaussian".

    Example:
        >>> x = torch.tensor([3.0, 4.0])
        >>> estimate = GradientEstimator(n_samples=2000, mu=1e-3, scale_by_dim=True,
        ...                              generator=torch.Generator().manual_seed(0))
        >>> value, gradient = estimate.batched([x], lambda points: 0.5 * points.square().sum(-1))
        >>> value.item(), bool((gradient - x).norm() < 0.5)
        (12.5, True)
    """

    def __init__(
        self,
        *,
        n_samples: int = 2,
        mu: float = 5e-3,
        direction: Direction = "sphere",
        scale_by_dim: bool = False,
        symmetric: bool = False,
        generator: torch.Generator | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        if not (isinstance(n_samples, int) and n_samples >= 1):
            raise ValueError(f"n_samples must be a positive integer, not {n_samples!r}")
        if not mu > 0:
            raise ValueError(f"mu must be above 0, not {mu!r}")
        if direction not in ("sphere", "gaussian"):
            raise ValueError(f"direction must be 'sphere' or 'gaussian', not {direction!r}")
        if scale_by_dim and direction == "gaussian":
            raise ValueError(
                "scale_by_dim is for directions on the sphere; a Gaussian estimate needs no factor d"
            )
        if generator is not None and sampler is not None:
            raise ValueError("give a generator or a sampler, not both")
        self.n_samples, self.mu, self.direction = n_samples, mu, direction
        self.scale_by_dim, self.symmetric = scale_by_dim, symmetric
        self.generator, self.sampler = generator, sampler
        self._buffers: dict[tuple[Any, ...], Tensor] = {}

    @property
    def evaluations(self) -> int:
        """Function values that one estimate costs: K + 1, or 2K if symmetric."""
        return 2 * self.n_samples if self.symmetric else self.n_samples + 1

    @torch.no_grad()
    def __call__(self, params: Sequence[Tensor], closure: Closure) -> tuple[Tensor, Tensor]:
        """Estimate with one call of `closure` per value; it reads the parameters, which move meanwhile.

        The parameters are put back by copy, bit for bit, also when `closure` raises.

        Returns:
            The value at the parameters (the mean of the probes if symmetric), and the estimate, flat: [d].
        """
        saved = [p.clone() for p in params]
        sizes = [p.numel() for p in params]
        flat = torch.empty(sum(sizes), dtype=_working_dtype(params), device=params[0].device)
        gradient = torch.zeros_like(flat)

        def value_at(step: Tensor | float) -> Tensor:
            pieces = torch.split(flat, sizes)
            for p, origin, piece in zip(params, saved, pieces, strict=True):
                p.copy_(origin + step * piece.view_as(p))
            return _scalar(closure(), gradient)

        try:
            value = torch.zeros_like(gradient[0]) if self.symmetric else _scalar(closure(), gradient)
            for _ in range(self.n_samples):
                self._draw(flat)
                scale = self._scales(flat.unsqueeze(0))[0]
                step = scale * self.mu
                if self.symmetric:
                    ahead, behind = value_at(step), value_at(-step)
                    value = value + (ahead + behind) / (2 * self.n_samples)
                    slope = (ahead - behind) / (2 * self.mu)
                else:
                    slope = (value_at(step) - value) / self.mu
                gradient.add_(flat * (slope * scale))
        finally:
            for p, origin in zip(params, saved, strict=True):
                p.copy_(origin)
        return value, gradient.mul_(self._factor(flat.numel()))

    @torch.no_grad()
    def batched(self, params: Sequence[Tensor], function: Function) -> tuple[Tensor, Tensor]:
        """Estimate with one call of `function`, which maps points [n, d] to values [n].

        A point is the concatenation of the flattened parameters. Row 0 is the current point and row k is
        displaced along direction k; if symmetric, rows 0..K-1 are ahead and rows K..2K-1 behind. The points
        are a buffer that the next call overwrites.

        Returns:
            The value at the parameters (the mean of the probes if symmetric), and the estimate, flat: [d].

        Raises:
            ValueError: `function` does not return one value per point.
        """
        x = params[0].reshape(-1) if len(params) == 1 else torch.cat([p.reshape(-1) for p in params])
        k, d = self.n_samples, x.numel()
        dtype = _working_dtype(params)
        draws = self._buffer("draws", (k, d), dtype, x.device)
        points = self._buffer("points", (self.evaluations, d), dtype, x.device)
        for row in draws.unbind():
            self._draw(row)
        scales = self._scales(draws)
        steps = (scales * self.mu).unsqueeze(1)
        if self.symmetric:
            torch.addcmul(x, draws, steps, out=points[:k])
            torch.addcmul(x, draws, -steps, out=points[k:])
        else:
            points[0] = x
            torch.addcmul(x, draws, steps, out=points[1:])
        values = function(points)
        if values.shape != (self.evaluations,):
            raise ValueError(
                f"a batched function returns {self.evaluations} values here, not {tuple(values.shape)}"
            )
        values = values.to(dtype)
        if self.symmetric:
            value, slopes = values.mean(), (values[:k] - values[k:]) / (2 * self.mu)
        else:
            value, slopes = values[0].clone(), (values[1:] - values[0]) / self.mu
        return value, torch.mv(draws.T, slopes * scales * self._factor(d))

    def _factor(self, d: int) -> float:
        return (d if self.scale_by_dim else 1) / self.n_samples

    def _draw(self, out: Tensor) -> None:
        """Fill `out` with the standard normal numbers of one direction."""
        if self.sampler is not None:
            out.copy_(self.sampler(out.numel()).reshape(-1))
        elif out.dtype == torch.float32 and (self.generator is None or self.generator.device == out.device):
            out.normal_(generator=self.generator)
        else:  # float32 draws on the generator's device whatever the parameters: fast, the same numbers
            device = out.device if self.generator is None else self.generator.device
            draw = self._buffer("float32", (out.numel(),), torch.float32, device)
            out.copy_(draw.normal_(generator=self.generator))

    def _scales(self, draws: Tensor) -> Tensor:
        """What each row of `draws` [K, d] is multiplied by to become a direction: [K]."""
        if self.direction == "gaussian":
            return torch.ones_like(draws[:, 0])
        return torch.linalg.vector_norm(draws, dim=1).reciprocal_()

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        key = (name, shape, dtype, device)
        if key not in self._buffers:
            self._buffers = {k: v for k, v in self._buffers.items() if k[0] != name}
            self._buffers[key] = torch.empty(shape, dtype=dtype, device=device)
        return self._buffers[key]


class ZerothOrderOptimizer(torch.optim.Optimizer):
    """An optimizer whose gradient is estimated from function values; subclasses say what to do with it.

    Args:
        params: parameters or parameter groups.
        defaults: options of a group, such as `lr`.
        blockwise: estimate and update one tensor after the other, so that later tensors see earlier ones
            already moved, at `evaluations` function values per tensor; False perturbs all of them jointly.
        n_samples, mu, direction, scale_by_dim, symmetric, generator, sampler: see `GradientEstimator`.
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
        generator: torch.Generator | None,
        sampler: Sampler | None,
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
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Closure | None = None, *, batched: Function | None = None
    ) -> Tensor:
        """One update from function values: of `closure`, or of `batched`, at once.

        Args:
            closure: returns the objective (a scalar) at the parameters as they are; called once per value.
            batched: maps points [n, d] to objectives [n]; see `GradientEstimator.batched`.

        Returns:
            The objective before the update (the mean of the probes if symmetric).

        Raises:
            ValueError: not exactly one of the two, or `batched` with `blockwise` and several tensors.
        """
        if (closure is None) == (batched is None):
            raise ValueError("a zeroth-order step needs either closure or batched")
        loss = None
        for block in self._blocks():
            tensors = [p for _, params in block for p in params]
            if closure is not None:
                value, flat = self.estimator(tensors, closure)
            else:
                assert batched is not None
                value, flat = self.estimator.batched(tensors, batched)
            loss = value if loss is None else loss
            grads = list(torch.split(flat, [p.numel() for p in tensors]))
            for group, params in block:
                mine = [g.view_as(p).to(p.dtype) for p, g in zip(params, grads, strict=False)]
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
        lr: learning rate, at least 0.
        n_samples, mu, direction, scale_by_dim, symmetric, generator, sampler: see `GradientEstimator`.
            Not for a rule whose step needs a closure (`torch.optim.LBFGS`).

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
        generator: torch.Generator | None = None,
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
            blockwise=False,
            generator=generator,
            sampler=sampler,
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


def _working_dtype(params: Sequence[Tensor]) -> torch.dtype:
    return torch.promote_types(params[0].dtype, torch.float32)


def _scalar(value: Tensor | float, like: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).reshape(())
