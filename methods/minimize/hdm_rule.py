"""The iteration of hypergradient descent, apart from who evaluates f and where the parameters live.

A step is a generator: it yields the points at which it wants f and ∇f, is sent (f, ∇f), and returns the point
where the parameters then belong. Arrays are NumPy arrays or torch tensors alike.
"""

import math
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from methods.minimize.flat import clip
from methods.minimize.preconditioner import ADAGRAD_EPS, LEARNERS, PRECONDITIONERS, Array

__all__ = ["HDMOptions", "HDMRule"]

BETA_MAX = 0.9995
CLIP = 1e10  # HDM-Best keeps P within [0, CLIP / L]
MIN_MOVE = 1e-3  # shorter steps say too little about the curvature

Evaluation = tuple[float, Array]
Step = Generator[Array, Evaluation, Array]


@dataclass(frozen=True)
class HDMOptions:
    """The hyperparameters of `methods.minimize.hdm.HDM`, which documents them; checked.

    Raises:
        ValueError: a hyperparameter is out of its range.
    """

    lr: float | None = None
    preconditioner: str = "diagonal"
    learner: str = "ogd"
    momentum: str = "none"
    momentum_lr: float = 10.0
    momentum_init: float = 0.95
    momentum_shape: str = "scalar"
    nu: float = 0.0
    null_step: bool = True
    projection: Callable[[Array], Any] | None = None
    adaptive: bool = False
    horizon: int = 1000
    convex: bool = True
    smoothness: float | None = None
    strong_convexity: float | None = None

    def __post_init__(self) -> None:
        for name, known in (
            ("preconditioner", tuple(PRECONDITIONERS)),
            ("learner", tuple(LEARNERS)),
            ("momentum", ("none", "heavy_ball", "nesterov")),
            ("momentum_shape", ("scalar", "diagonal")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(known)}")
        for name in ("lr", "momentum_lr", "smoothness", "strong_convexity"):
            number = getattr(self, name)
            if number is not None and not 0 < number < math.inf:
                raise ValueError(f"{name}={number}: expected a positive, finite number")
        if not 0 <= self.momentum_init <= BETA_MAX:
            raise ValueError(f"momentum_init={self.momentum_init}: expected a number in [0, {BETA_MAX}]")
        if not 0 <= self.nu < math.inf or self.horizon < 1:
            raise ValueError(f"nu={self.nu}, horizon={self.horizon}: expected nu >= 0 and horizon >= 1")
        if self.momentum == "nesterov":
            if self.smoothness is None:
                raise ValueError("momentum='nesterov' needs the smoothness L of the problem")
            if self.adaptive or not self.null_step:
                raise ValueError("momentum='nesterov' has neither adaptive=True nor null_step=False")

    @property
    def start_lr(self) -> float:
        """η at the start."""
        if self.lr is not None:
            return self.lr
        return 0.1 if self.smoothness is None else (10 if self.convex else 2) / self.smoothness


class HDMRule:
    """One problem's iteration.

    Args:
        options: hyperparameters.
        numbers: scalars of the state (value, lr, beta, ...), changed in place; filled by `start`.
        arrays: previous, gradient, P, and where used G, z, beta, beta_G; changed in place.
        tiny: ‖g‖² below which a point counts as stationary.
    """

    def __init__(
        self, options: HDMOptions, numbers: dict[str, Any], arrays: dict[str, Array], tiny: float
    ) -> None:
        self.options, self.numbers, self.arrays, self.tiny = options, numbers, arrays, tiny
        self.P = PRECONDITIONERS[options.preconditioner]()
        self.learner = LEARNERS[options.learner]()
        self.row = max(min(options.horizon / 4, 200), 20)
        self.heavy_ball = options.momentum == "heavy_ball"
        self.diagonal_beta = options.momentum_shape == "diagonal"

    @staticmethod
    def shapes(options: HDMOptions, n: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays for n parameters."""
        P = PRECONDITIONERS[options.preconditioner]().shape(n)
        shapes: dict[str, tuple[int, ...]] = {"previous": (n,), "gradient": (n,), "P": P}
        if LEARNERS[options.learner].remembers:
            shapes["G"] = P
        if options.momentum == "nesterov":
            shapes["z"] = (n,)
        if options.momentum == "heavy_ball" and options.momentum_shape == "diagonal":
            shapes.update(beta=(n,), beta_G=(n,))
        return shapes

    def start(self, x: Array, value: float, gradient: Array) -> None:
        """Fill numbers and (zero) arrays at the first point."""
        arrays, options = self.arrays, self.options
        arrays["previous"][...] = x
        arrays["gradient"][...] = gradient
        self.numbers.update(value=value, gradient_sq=float(gradient @ gradient), lr=options.start_lr)
        if self.heavy_ball:
            self.numbers["moved"] = False
            if self.diagonal_beta:
                arrays["beta"][...] = options.momentum_init
                arrays["beta_G"][...] = 1e-4
            else:
                self.numbers.update(beta=options.momentum_init, beta_G=0.0)
        if options.momentum == "nesterov":
            arrays["z"][...] = x
            self.numbers["A"] = 0.0
        if options.adaptive:
            self.numbers.update(
                steps=0, lr_start=options.start_lr, row=0, curvature_sum=0.0, curvatures=0, L=None
            )

    @property
    def stationary(self) -> bool:
        """Whether ‖g‖² is 0, or so small that dividing by it means nothing; a step is then pointless."""
        return self.numbers["gradient_sq"] < self.tiny

    def step(self, x: Array) -> Step:
        """One iteration from x (not changed; the caller may overwrite it once a point is yielded)."""
        return self._nesterov(x) if self.options.momentum == "nesterov" else self._heavy_ball(x)

    def _heavy_ball(self, x: Array) -> Step:
        options, numbers, arrays = self.options, self.numbers, self.arrays
        g, P, previous = arrays["gradient"], arrays["P"], arrays["previous"]
        d = None
        trial = x - self.P.apply(P, g)
        if self.heavy_ball and numbers["moved"]:
            d = x - previous
            trial += (arrays["beta"] if self.diagonal_beta else numbers["beta"]) * d
        previous[...] = x  # also where to go back to after a null step
        value, g_trial = yield trial
        trial_sq = float(g_trial @ g_trial)
        if options.null_step and not math.isfinite(trial_sq):
            return self._hopeless()

        norm = self._norm(d)
        self.learner.update(P, self.P.hypergradient(g_trial, g, norm), arrays.get("G"), numbers["lr"])
        if options.adaptive and options.convex:
            L = numbers["L"] or options.smoothness
            clip(P, 0.0, math.inf if L is None else CLIP / L)
        if options.projection is not None:
            options.projection(P)
        if d is not None:
            self._learn_beta(g_trial, d, norm)

        accepted = value < numbers["value"] or not options.null_step
        if options.adaptive:
            numbers["steps"] += 1
            if numbers["L"] is None:
                self._watch_curvature(accepted, trial, g_trial)
        if self.heavy_ball:
            numbers["moved"] = accepted
        if not accepted:
            return previous
        numbers["value"], numbers["gradient_sq"] = value, trial_sq
        g[...] = g_trial
        return trial

    def _hopeless(self) -> Array:
        """A null step that teaches P nothing, as its gradient overflows; later ones will fare no better."""
        if not self.numbers.get("warned"):
            self.numbers["warned"] = True
            warnings.warn(
                f"HDM: overflow at the trial point; lr={self.numbers['lr']:g} is too large",
                RuntimeWarning,
                stacklevel=5,
            )
        if self.heavy_ball:
            self.numbers["moved"] = False
        return self.arrays["previous"]

    def _norm(self, d: Array | None) -> float:
        """N, by which the feedback is divided."""
        numbers = self.numbers
        norm: float = numbers["gradient_sq"]
        L = numbers.get("L")
        nu = self.options.nu if L is None else 0.25 * L**2
        if d is not None and nu:
            norm += nu * float(d @ d)
        return norm + 1e-12 if self.options.adaptive and L is None else norm

    def _learn_beta(self, g_trial: Array, d: Array, norm: float) -> None:
        numbers, lr = self.numbers, self.numbers.get("momentum_lr", self.options.momentum_lr)
        if self.diagonal_beta:
            beta = self.arrays["beta"]
            self.learner.update(beta, (g_trial * d) / norm, self.arrays["beta_G"], lr)
            clip(beta, 0.0, BETA_MAX)
            return
        slope = float(g_trial @ d) / norm
        if self.learner.remembers:
            numbers["beta_G"] += slope * slope
            slope /= math.sqrt(numbers["beta_G"]) + ADAGRAD_EPS
        numbers["beta"] = min(max(numbers["beta"] - lr * slope, 0.0), BETA_MAX)

    def _watch_curvature(self, accepted: bool, trial: Array, g_trial: Array) -> None:
        """Until L is estimated: decay lr, collect ‖Δg‖/‖Δx‖; after many accepted steps take the mean."""
        numbers, arrays = self.numbers, self.arrays
        if numbers["steps"] % 50 == 49:
            factor, floor = (0.8, 1e-3) if self.options.convex else (0.05, 1e-2)
            numbers["lr"] = max(factor * numbers["lr"], floor * numbers["lr_start"])
        if not accepted:
            numbers["row"] = max(0, numbers["row"] - 2)
            return
        numbers["row"] += 1
        moved = trial - arrays["previous"]
        length = math.sqrt(float(moved @ moved))
        if length > MIN_MOVE:
            changed = g_trial - arrays["gradient"]
            numbers["curvature_sum"] += math.sqrt(float(changed @ changed)) / length
            numbers["curvatures"] += 1
        if numbers["row"] > self.row and numbers["curvature_sum"] > 0:
            numbers["L"] = numbers["curvature_sum"] / numbers["curvatures"]
            numbers["lr"] = numbers["lr_start"] = 1 / numbers["L"]
            if "G" in arrays:
                arrays["G"][...] = 0.0

    def _nesterov(self, x: Array) -> Step:
        """y between x and z, then the better of the learned y - P g and the safe y - g/L, then z.

        Convex: weights A, a = (1 + √(4A+1))/2, and with h = [f(x⁺) - f(y)]/‖g‖² z moves by 2 a h g, which is
        -(a/L) g for a step that only just satisfies the descent lemma. Strongly convex: q = √(μ/L).
        """
        numbers, arrays, options = self.numbers, self.arrays, self.options
        L, mu = options.smoothness, options.strong_convexity
        assert L is not None
        z, P, A = arrays["z"], arrays["P"], numbers["A"]
        a = (1 + math.sqrt(4 * A + 1)) / 2
        q = math.sqrt(mu / L) if mu is not None else 0.0
        arrays["previous"][...] = x
        y = x + (q / (1 + q) if mu is not None else 1 - A / (A + a)) * (z - x)
        f_y, grad_y = yield y
        g = grad_y + 0.0  # the next evaluation may overwrite grad_y
        norm = float(g @ g)
        if norm < self.tiny:
            arrays["gradient"][...] = g
            numbers.update(value=f_y, gradient_sq=norm)
            return y
        safe = y - g / L
        f_safe, grad_safe = yield safe
        grad_safe = grad_safe + 0.0
        learned = y - self.P.apply(P, g)
        f_learned, grad_learned = yield learned
        learning = math.isfinite(float(grad_learned @ grad_learned))
        if not learning:
            self._hopeless()
        else:
            self.learner.update(
                P, self.P.hypergradient(grad_learned, g, norm), arrays.get("G"), numbers["lr"]
            )
            if options.projection is not None:
                options.projection(P)
        better = learning and f_learned <= f_safe
        point, value, gradient = (learned, f_learned, grad_learned) if better else (safe, f_safe, grad_safe)
        if mu is not None:
            z[...] = (1 - q) * z + q * (y - g / mu)
        else:
            z += (2 * a * (f_learned - f_y) / norm if better else -a / L) * g
            numbers["A"] = A + a
        arrays["gradient"][...] = gradient
        numbers.update(value=value, gradient_sq=float(gradient @ gradient))
        return point
