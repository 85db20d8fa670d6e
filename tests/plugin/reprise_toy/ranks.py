"""A walk downhill on any number of ranks, with checkpoints: every rank measures the slope, all move together."""

import os
import random
import time


class Walk:
    """f(x) = x^2 / 2; the slope is the mean of the ranks' noisy ones. Notes each attempt in `attempts.log`.

    `fault` happens on rank `victim` (-1: on every one) at step `fault_step`: raise, nan or hang.
    """

    def __init__(
        self,
        steps: int = 20,
        noise: float = 0.1,
        pause: float = 0.0,
        checkpoints: bool = True,
        fault: str | None = None,
        fault_step: int = 3,
        victim: int = 1,
    ):
        self.steps, self.noise, self.pause, self.checkpoints = steps, noise, pause, checkpoints
        self.fault, self.fault_step, self.victim = fault, fault_step, victim

    def evaluate(self, method, run) -> None:
        if self.checkpoints:
            import torch  # noqa: F401  what a checkpoint takes is loaded before there is a hurry
        agent = method()
        state = (run.restore() if self.checkpoints else None) or {"step": 0, "x": 1.5}
        x = state["x"]
        with open(run.dir / "attempts.log", "a") as log:
            log.write(f"{run.rank} {state['step']} {os.getpid()}\n")
        for step in run.track(range(state["step"], self.steps)):
            if self.pause:
                time.sleep(self.pause)
            x = agent.move(x, self._slope(x, step, run))
            gap = x * x / 2
            if step == self.fault_step and run.rank == (run.rank if self.victim < 0 else self.victim):
                gap = self._misbehave(gap, run)
            run.log(step=step, gap=gap)
            if self.checkpoints and run.due():
                run.save({"step": step + 1, "x": x})
        run.summary(gap=x * x / 2)

    def _slope(self, x: float, step: int, run) -> float:
        mine = x + self.noise * random.Random(f"{run.seed}/{step}/{run.rank}").gauss(0, 1)
        if run.ranks == 1:
            return mine
        import torch
        import torch.distributed as dist

        total = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / run.ranks

    def _misbehave(self, gap: float, run) -> float:
        if self.fault == "raise":
            raise ArithmeticError(f"rank {run.rank} cannot add")
        if self.fault == "hang":
            time.sleep(3600)
        return float("nan") if self.fault == "nan" else gap


class Where:
    """Records the devices that a run was given, and for a while keeps them."""

    def __init__(self, pause: float = 0.0):
        self.pause = pause

    def evaluate(self, method, run) -> None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        started = time.time()
        time.sleep(self.pause)
        run.summary(visible=visible, device=run.device.type, started=started, ended=time.time())
