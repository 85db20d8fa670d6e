"""Multi-class logistic regression with few weights, on real digits."""

from typing import Any

import numpy as np

from tasks.minimize.sparse import BallFactory, Method
from tasks.run import Run


class Softmax:
    """R(W) = mean cross-entropy of softmax(X W), W (features, classes) as one vector.

    Args:
        X: (n, features).
        y: classes, (n,), integers from 0.
        classes: their number.
    """

    def __init__(self, X: np.ndarray, y: np.ndarray, classes: int) -> None:
        self.X, self.y, self.classes = X, y, classes
        self.terms = X.shape[0]
        self.shape: tuple[int, ...] = (X.shape[1] * classes,)
        # the Hessian of the softmax's cross-entropy in its scores is at most I / 2
        self.smoothness: Any = float(np.linalg.norm(X, 2) ** 2) / (2 * self.terms)
        self._target = np.eye(classes)[y]

    def gradient(self, w: np.ndarray) -> np.ndarray:
        return self._slope(self.X, self._target, w)

    def batch_gradient(self, w: np.ndarray, batch: np.ndarray) -> np.ndarray:
        chosen = batch.ravel()
        return self._slope(self.X[chosen], self._target[chosen], w)

    def values(self, points: np.ndarray) -> np.ndarray:
        return np.array([self.value(point) for point in points])

    def value(self, w: np.ndarray) -> float:
        """R(w)."""
        return float(-self._log_softmax(self.X, w)[np.arange(self.terms), self.y].mean())

    def predict(self, X: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Classes, (n,)."""
        found: np.ndarray = (X @ w.reshape(X.shape[1], -1)).argmax(1)
        return found

    def _log_softmax(self, X: np.ndarray, w: np.ndarray) -> np.ndarray:
        scores = X @ w.reshape(X.shape[1], -1)
        scores -= scores.max(1, keepdims=True)
        found: np.ndarray = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        return found

    def _slope(self, X: np.ndarray, target: np.ndarray, w: np.ndarray) -> np.ndarray:
        slope: np.ndarray = X.T @ (np.exp(self._log_softmax(X, w)) - target) / X.shape[0]
        return slope.ravel()


class SparseSoftmax:
    """Training loss and test accuracy of classifiers of 8x8 digits with at most k of 640 weights, within Γ.

    Each repeat splits the images anew.

    Rows (unit `repeat`): loss (training, of the last iterate), accuracy (test), nonzero (entries), set_excess (gauge
    minus radius).

    Curve: `loss` of repeat 0.

    Args:
        data: door with `images()` and `labels()`.
        k: most nonzero weights.
        constraint: factory of Γ.
        radius: of Γ.
        held_out: share of the images to test on.
        iterations: of the method.
        repeats: splits.
    """

    def __init__(
        self,
        data: Any,
        k: int,
        constraint: BallFactory,
        radius: float,
        held_out: float = 0.2,
        iterations: int = 300,
        repeats: int = 10,
    ) -> None:
        if k < 1 or not 0 < held_out < 1 or iterations < 1 or repeats < 1:
            raise ValueError(
                f"k={k}, held_out={held_out}, iterations={iterations}, repeats={repeats}: "
                "expected at least 1, between 0 and 1, at least 1, at least 1"
            )
        self.data, self.k, self.ball = data, k, constraint(radius=radius)
        self.held_out, self.iterations, self.repeats = held_out, iterations, repeats

    def evaluate(self, method: Method, run: Run) -> None:
        """Train and test on every split."""
        X = self.data.images().numpy().reshape(len(self.data.images()), -1).astype(np.float64)
        y = self.data.labels().numpy()
        shown = set(np.unique(np.geomspace(1, self.iterations, 50).round().astype(int)).tolist())
        table = []
        for i in run.track(range(self.repeats)):
            order = run.rng("split", i).permutation(y.size)
            test, train = np.split(order, [int(self.held_out * y.size)])
            problem = Softmax(X[train], y[train], int(y.max()) + 1)
            iterates = method(problem, self.k, self.ball, [run.rng("draws", i)])
            w = np.zeros(problem.shape)
            for t in range(1, self.iterations + 1):
                w = next(iterates)
                if i == 0 and t in shown:
                    run.log(step=t, loss=problem.value(w))
            table.append(
                {
                    "i": i,
                    "loss": problem.value(w),
                    "accuracy": float((problem.predict(X[test], w) == y[test]).mean()),
                    "nonzero": int((w != 0).sum()),
                    "set_excess": float(self.ball.gauge(w) - self.ball.radius),
                }
            )
        run.rows("repeat", table)
