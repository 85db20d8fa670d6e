"""Two ways to go downhill, and some that misbehave."""

import importlib
import os
import random
import time

from reprise_toy.helper import scaled


class Descent:
    """Gradient descent: x - lr * slope."""

    def __init__(self, lr: float = 0.1, name: str = "descent"):
        self.lr, self.name = lr, name

    def move(self, x: float, slope: float) -> float:
        return x - scaled(slope, self.lr)


class Sign(Descent):
    """Signed descent: x - lr * sign(slope)."""

    def move(self, x: float, slope: float) -> float:
        return x - self.lr * ((slope > 0) - (slope < 0))


class Careful(Descent):
    """Descent that looks at its learning rate."""

    def __init__(self, lr: float = 0.1, name: str = "careful"):
        if not lr > 0:
            raise ValueError(f"lr={lr}: expected a number above 0")
        super().__init__(lr, name)


class Bad(Descent):
    """Fails in the way it is told to: nan, overflow, raise, exit, loop, die, leak; with another word it does not."""

    def __init__(self, how: str = "raise", lr: float = 0.1):
        super().__init__(lr, "bad")
        self.how = how

    def move(self, x: float, slope: float) -> float:
        if self.how == "nan":
            return float("nan")
        if self.how == "overflow":
            raise FloatingPointError("the slope is not finite")
        if self.how == "raise":
            raise ArithmeticError("this method cannot add")
        if self.how == "exit":
            raise SystemExit(0)
        if self.how == "leak":  # global state that the next run in this process must not see
            random.seed(0)
            torch = importlib.import_module("torch")
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)
        if self.how == "loop":
            while True:
                time.sleep(0.01)
        if self.how == "die":
            os.kill(os.getpid(), 9)
        return super().move(x, slope)
