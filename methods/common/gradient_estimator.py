"""Gradients from function values: finite differences along random directions."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from methods.common.draws import Draws, Generators, Sampler

Closure = Callable[[], Tensor | float]
Function = Callable[[Tensor], Tensor]
Direction = Literal["sphere", "gaussian", "radial"]


class GradientEstimator:
    """Finite differences along random directions (Nesterov and Spokoiny, 2017; R-AdaZO, Sec. 2).

    With directions u_1..u_K the estimate is ``c/K * sum_k (f(x + mu u_k) - f(x)) / mu * u_k``, and with
    `symmetric` the difference quotient is ``(f(x + mu u_k) - f(x - mu u_k)) / (2 mu)``.

    Args:
        n_samples: number of directions K, at least 1.
        mu: smoothing radius, above 0, in units of x. At equal `mu` a Gaussian probe sits sqrt(d) times
            farther away than a probe on the sphere.
        direction: "sphere" (uniform on the unit sphere), "gaussian" (standard normal) or "radial" (uniform on the
            sphere, times a radius uniform in [0, 1]).
        scale_by_dim: c = d instead of 1; with "sphere" this makes the estimate unbiased for a linear f, with
            "radial" it is a third of that.
        symmetric: two-sided differences.
        generator: source of the directions; None is torch's default generator. A sequence of R generators stands
            for R replicates, which `batched` computes at once: every parameter has a leading axis of length R, and
            replicate r draws from the r-th generator alone.
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
        generator: Generators = None,
        sampler: Sampler | None = None,
    ) -> None:
        if not (isinstance(n_samples, int) and n_samples >= 1):
            raise ValueError(f"n_samples must be a positive integer, not {n_samples!r}")
        if not mu > 0:
            raise ValueError(f"mu must be above 0, not {mu!r}")
        if direction not in ("sphere", "gaussian", "radial"):
            raise ValueError(f"direction must be 'sphere', 'gaussian' or 'radial', not {direction!r}")
        if scale_by_dim and direction == "gaussian":
            raise ValueError(
                "scale_by_dim is for directions on the sphere; a Gaussian estimate needs no factor d"
            )
        self.draws = Draws(generator, sampler)
        self.n_samples, self.mu, self.direction = n_samples, mu, direction
        self.scale_by_dim, self.symmetric = scale_by_dim, symmetric
        self.generator, self.sampler = self.draws.generators[0], sampler
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

        Raises:
            ValueError: there are replicates; they need `batched`.
        """
        if self.draws.replicates is not None:
            raise ValueError("a closure has one value: replicates need a batched function")
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

        With R replicates, points are [R, n, d] and values [R, n].

        Returns:
            The value at the parameters (the mean of the probes if symmetric), and the estimate, flat: [d]. With
            replicates [R] and [R, d].

        Raises:
            ValueError: `function` does not return one value per point.
        """
        if self.draws.replicates is not None:
            return self._replicated(params, function)
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

    def _replicated(self, params: Sequence[Tensor], function: Function) -> tuple[Tensor, Tensor]:
        """`batched` for R replicates. Sums run over one replicate's numbers, in an order that R leaves alone."""
        x = replicates_of(params, self.draws.replicates)
        k, d = self.n_samples, x.shape[1]
        steps = self.draws.normal(k, d, like=x)
        if self.direction != "gaussian":
            steps = steps / torch.linalg.vector_norm(steps, dim=2, keepdim=True)
        if self.direction == "radial":
            steps = steps * self.draws.uniform(k, 1, like=x)
        here = x.unsqueeze(1)
        ends = (here + self.mu * steps, here - self.mu * steps if self.symmetric else here)
        values = function(torch.cat(ends if self.symmetric else ends[::-1], dim=1))
        if values.shape != (len(x), self.evaluations):
            raise ValueError(
                f"a batched function returns {len(x)} x {self.evaluations} values here, not {tuple(values.shape)}"
            )
        values = values.to(x.dtype)
        if self.symmetric:
            value, slopes = values.mean(1), (values[:, :k] - values[:, k:]) / (2 * self.mu)
        else:
            value, slopes = values[:, 0].clone(), (values[:, 1:] - values[:, :1]) / self.mu
        return value, (steps * (slopes * self._factor(d)).unsqueeze(2)).sum(1)

    def _factor(self, d: int) -> float:
        return (d if self.scale_by_dim else 1) / self.n_samples

    def _draw(self, out: Tensor) -> None:
        """Fill `out` with the standard normal numbers of one direction, or with a whole one if radial."""
        self._draw_normal(out)
        if self.direction == "radial":
            radius = self.draws.uniform(1, 1, like=out).reshape(())
            out.mul_(radius / torch.linalg.vector_norm(out))

    def _draw_normal(self, out: Tensor) -> None:
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
        if self.direction != "sphere":
            return torch.ones_like(draws[:, 0])
        return torch.linalg.vector_norm(draws, dim=1).reciprocal_()

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        key = (name, shape, dtype, device)
        if key not in self._buffers:
            self._buffers = {k: v for k, v in self._buffers.items() if k[0] != name}
            self._buffers[key] = torch.empty(shape, dtype=dtype, device=device)
        return self._buffers[key]


def replicates_of(params: Sequence[Tensor], replicates: int | None) -> Tensor:
    """The parameters as points, one a replicate: a copy, [R, d].

    Raises:
        ValueError: a parameter without a leading axis of length R.
    """
    count = replicates or 1
    for p in params:
        if replicates is not None and (p.ndim < 1 or len(p) != count):
            raise ValueError(
                f"{count} replicates need parameters with a leading axis of {count}, not {tuple(p.shape)}"
            )
    dtype = _working_dtype(params)
    return torch.cat([p.detach().reshape(count, -1).to(dtype) for p in params], dim=1)


def _working_dtype(params: Sequence[Tensor]) -> torch.dtype:
    return torch.promote_types(params[0].dtype, torch.float32)


def _scalar(value: Tensor | float, like: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).reshape(())
