"""Heavy-tailed noise with a known law."""

import torch
from torch import Tensor


class PowerLaw:
    """Symmetric noise with density a/2 · (1 + |x|)^(-a-1).

    P(|X| > t) = (1 + t)^(-a), so E|X|^p is finite for p < a only: at a = 3/2 the mean is 0, E|X| = 2, and the variance
    is infinite.

    Args:
        tail: a > 0.

    Raises:
        ValueError: tail is not above 0.

    Source: the noise of the quadratic experiments of Chezhegov et al. (2025), where a = 3/2.

    >>> noise = PowerLaw(1.5)
    >>> noise.cdf(torch.tensor([0.0, 3.0], dtype=torch.float64)).tolist()
    [0.5, 0.9375]
    >>> noise.quantile(torch.tensor([0.5, 0.9375], dtype=torch.float64)).tolist()
    [0.0, 3.0]
    >>> noise.sample((2, 3), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """

    def __init__(self, tail: float = 1.5) -> None:
        if not tail > 0:
            raise ValueError(f"tail must be above 0, not {tail}")
        self.tail = tail

    def density(self, x: Tensor) -> Tensor:
        """Density at x, elementwise."""
        return self.tail / 2 * (1 + x.abs()) ** (-self.tail - 1)

    def cdf(self, x: Tensor) -> Tensor:
        """P(X <= x), elementwise."""
        tail = (1 + x.abs()) ** -self.tail / 2
        return torch.where(x > 0, 1 - tail, tail)

    def quantile(self, level: Tensor) -> Tensor:
        """The x with P(X <= x) = level, elementwise; level in (0, 1)."""
        return self._inverse(2 * level - 1)

    def sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Independent draws by inversion of the cdf, in double precision; one uniform number a draw, in order.

        The uniform numbers are k/2^53, shifted by half a step so that none of them is 0 or 1; |X| is at most
        2^(53/a) - 1.
        """
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
        return self._inverse(uniform.mul_(2).sub_(1 - 2.0**-53))

    def _inverse(self, w: Tensor) -> Tensor:
        """sign(w) ((1 - |w|)^(-1/a) - 1), exact near 0 too."""
        return (w.abs().neg_().log1p_().mul_(-1 / self.tail)).expm1_().copysign_(w)
