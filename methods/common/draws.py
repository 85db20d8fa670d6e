"""Standard normal numbers for one optimizer, or for replicates of it that each have a generator of their own."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Generators = torch.Generator | Sequence[torch.Generator] | None
Sampler = Callable[[int], Tensor]


class Draws:
    """A stream of standard normal numbers.

    Args:
        generator: source of the numbers; None is torch's default generator. A sequence of R generators stands for
            R replicates: replicate r draws from the r-th alone, so its numbers do not depend on the others.
        sampler: ``sampler(n)`` returns the next n standard normal numbers. Given instead of a generator, it plays
            fixed draws.

    Raises:
        ValueError: both are given, or the sequence is empty.

    Example:
        >>> alone = Draws(torch.Generator().manual_seed(7))
        >>> together = Draws([torch.Generator().manual_seed(seed) for seed in (5, 6, 7)])
        >>> x = torch.zeros(2)
        >>> bool((alone.normal(4, 2, like=x)[0] == together.normal(4, 2, like=x)[2]).all())
        True
    """

    def __init__(self, generator: Generators = None, sampler: Sampler | None = None) -> None:
        if generator is not None and sampler is not None:
            raise ValueError("give a generator or a sampler, not both")
        self.sampler = sampler
        self.replicates: int | None = None  # R, where there are several
        self.generators: list[torch.Generator | None]
        if generator is None or isinstance(generator, torch.Generator):
            self.generators = [generator]
        else:
            self.generators = list(generator)
            self.replicates = len(self.generators)
        if not self.generators:
            raise ValueError("no replicates: the sequence of generators is empty")

    def normal(self, n: int, d: int, *, like: Tensor) -> Tensor:
        """n vectors of d numbers for each replicate: [R, n, d] (R = 1 without replicates), in `like`'s dtype."""
        shape = (len(self.generators), n, d)
        if self.sampler is not None:
            return self.sampler(n * d).reshape(shape).to(like)
        first = self.generators[0]
        # float32 draws whatever the dtype: fast, and the same numbers
        out = torch.empty(shape, dtype=torch.float32, device=like.device if first is None else first.device)
        for row, generator in zip(out.unbind(), self.generators, strict=True):
            row.normal_(generator=generator)
        return out.to(like)

    def uniform(self, n: int, d: int, *, like: Tensor) -> Tensor:
        """Numbers between 0 and 1, [R, n, d]: the normal distribution function of normal ones."""
        return torch.special.ndtr(self.normal(n, d, like=like))
