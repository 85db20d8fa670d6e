"""Optimizers that say where they want function values, and learn from those."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from methods.common.draws import Draws, Generators, Sampler
from methods.common.gradient_estimator import Closure, Function, replicates_of


class AskTell(torch.optim.Optimizer):
    """Minimizes a function of d numbers by asking for its values at points; a torch optimizer as well.

    ``points = ask()``, then ``tell(values)``, makes one update; ``step`` does both. All parameters together are one
    point, the concatenation of the flattened tensors. Subclasses implement `propose` and `learn`, both for R
    replicates at once; sums in them run within one replicate.

    Args:
        params: parameters, or one parameter group.
        defaults: options of the group. With `lr` and `decay_steps` among them, update k = 0, 1, ... has the
            learning rate lr s / (s + k), s = `decay_steps`; None keeps it.
        maximize: values are to be maximized.
        generator: source of the draws; None is torch's default generator. A sequence of R generators stands for R
            replicates: every parameter has a leading axis of length R, points are [R, n, d] and values [R, n];
            replicate r draws from the r-th generator alone.
        sampler: ``sampler(n)`` returns the next n standard normal numbers. Given instead of a generator, it plays
            fixed draws.

    Raises:
        ValueError: several groups; a parameter without the leading axis; a learning rate below 0.
    """

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        *,
        maximize: bool = False,
        generator: Generators = None,
        sampler: Sampler | None = None,
    ) -> None:
        if not defaults.get("lr", 0) >= 0:
            raise ValueError(f"lr must be at least 0, not {defaults['lr']!r}")
        decay_steps = defaults.get("decay_steps")
        if decay_steps is not None and not decay_steps > 0:
            raise ValueError(f"decay_steps must be above 0, not {decay_steps!r}")
        super().__init__(params, defaults | {"updates": 0})
        if len(self.param_groups) != 1:
            raise ValueError(f"one parameter group is expected, not {len(self.param_groups)}")
        self.maximize = maximize
        self.draws = Draws(generator, sampler)
        self.options = self.param_groups[0]
        if "lr" in self.options:
            self.options["first_lr"] = self.options["lr"]
        self._asked: Tensor | None = None
        self.point()  # has every parameter the leading axis?

    # -- what subclasses implement -----------------------------------------------------------------------------------

    def propose(self, x: Tensor) -> Tensor:
        """Points [R, n, d] whose values are wanted, where the parameters stand at x [R, d]."""
        raise NotImplementedError

    def learn(self, x: Tensor, points: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        """New parameters [R, d] from losses [R, n] (to be minimized) at the points; and the losses [R] at x."""
        raise NotImplementedError

    # -- what users call ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def ask(self) -> Tensor:
        """Points whose values are wanted: [n, d], with replicates [R, n, d]."""
        self._asked = self.propose(self.point())
        return self._asked if self.draws.replicates is not None else self._asked[0]

    @torch.no_grad()
    def tell(self, values: Tensor) -> Tensor:
        """One update from the values [n] (with replicates [R, n]) at the points that `ask` returned.

        Returns:
            The objective before the update, a scalar (with replicates [R]).

        Raises:
            ValueError: not one value per point, or nothing was asked.
        """
        if self._asked is None:
            raise ValueError("tell follows ask")
        points, self._asked = self._asked, None
        several = self.draws.replicates is not None
        expected = points.shape[:2] if several else points.shape[1:2]
        if values.shape != expected:
            raise ValueError(f"values of shape {tuple(expected)} are expected, not {tuple(values.shape)}")
        losses = values.to(points).reshape(points.shape[:2])
        options = self.options
        if options.get("decay_steps") is not None:
            options["lr"] = options["first_lr"] / (1 + options["updates"] / options["decay_steps"])
        x, here = self.learn(self.point(), points, -losses if self.maximize else losses)
        options["updates"] += 1
        self._move(x)
        here = -here if self.maximize else here
        return here if several else here[0]

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Closure | None = None, *, batched: Function | None = None
    ) -> Tensor:
        """One update.

        Args:
            closure: returns the objective (a scalar) at the parameters as they are; called once per value. Not with
                replicates.
            batched: maps points [n, d] to objectives [n]; with replicates [R, n, d] to [R, n].

        Returns:
            The objective before the update, a scalar (with replicates [R]).

        Raises:
            ValueError: not exactly one of the two, or a closure with replicates.
        """
        if (closure is None) == (batched is None):
            raise ValueError("a step needs either closure or batched")
        points = self.ask()
        if batched is not None:
            return self.tell(batched(points))
        assert closure is not None
        if self.draws.replicates is not None:
            raise ValueError("a closure has one value: replicates need a batched function")
        start, values = self.point(), []
        try:
            for point in points:
                self._move(point.unsqueeze(0))
                values.append(
                    torch.as_tensor(closure(), dtype=points.dtype, device=points.device).reshape(())
                )
        finally:
            self._move(start)
        return self.tell(torch.stack(values))

    def point(self) -> Tensor:
        """Where the parameters stand: a copy, [R, d] (R = 1 without replicates)."""
        return replicates_of(self.options["params"], self.draws.replicates)

    @property
    def memory(self) -> dict[str, Any]:
        """What the optimizer remembers between updates; it is part of `state_dict`."""
        return self.state[self.options["params"][0]]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Back to a checkpoint."""
        super().load_state_dict(state_dict)
        self.options = self.param_groups[0]

    def _move(self, x: Tensor) -> None:
        params = self.options["params"]
        sizes = [p.numel() // len(x) for p in params]
        for p, part in zip(params, x.split(sizes, dim=1), strict=True):
            p.copy_(part.reshape(p.shape))


def positive(name: str, value: float) -> float:
    """`value`, if it is above 0; raises ValueError otherwise."""
    if not value > 0:
        raise ValueError(f"{name} must be above 0, not {value!r}")
    return value


def count(name: str, value: int, least: int = 1) -> int:
    """`value`, if it is a whole number of at least `least`; raises ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value
