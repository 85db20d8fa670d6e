"""Tasks that put the harness to the test: checkpoints, draws per replicate, global state."""

import os
import random
import signal
from pathlib import Path

from reprise_toy.tasks import note


class Chain:
    """A random walk of many steps with a checkpoint every few of them.

    Where the file named by $REPRISE_TOY_KILL exists, the process removes it and dies in the middle of its way.
    """

    def __init__(self, steps: int = 40, every: int = 5):
        self.steps, self.every = steps, every

    def evaluate(self, method, run) -> None:
        note("begin", run)
        agent, draws = method(), random.Random(run.seed)
        x, first = draws.uniform(1, 2), 0
        state = run.restore()
        if state is not None:
            x, first = state["x"], state["step"]
            draws.setstate(state["draws"])
        note(f"from-{first}", run)
        for step in run.track(range(first, self.steps)):
            x = agent.move(x, x + 0.1 * draws.gauss(0, 1))
            run.log(step=step, gap=x * x / 2)
            if (step + 1) % self.every == 0:
                run.rows("block", {"i": [step], "gap": [x * x / 2]})
                run.save({"x": x, "step": step + 1, "draws": draws.getstate()})
            kill = Path(os.environ.get("REPRISE_TOY_KILL", "/nowhere"))
            if step == self.steps * 2 // 3 and kill.exists():
                kill.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        run.summary(gap=x * x / 2)


class Draws:
    """Rows of random numbers; replicate i draws from its own generators, whatever batch it is in."""

    def __init__(self, replicates: int = 12, batch: int = 4, use_global: bool = False):
        self.replicates, self.batch, self.use_global = replicates, batch, use_global

    def evaluate(self, method, run) -> None:
        import numpy as np
        import torch

        agent = method()
        for start in range(0, self.replicates, self.batch):
            mine = range(start, min(start + self.batch, self.replicates))
            points = torch.stack([torch.randn(3, generator=run.generator("x", i)) for i in mine])
            noise = np.stack([run.rng("noise", i).normal(size=3) for i in mine])
            moved = [agent.move(float(x), float(x)) for x in (points + torch.as_tensor(noise)).sum(1)]
            run.rows("image", {"i": list(mine), "gap": moved})
        if self.use_global:
            weight = torch.rand(2, requires_grad=True)
            legacy = float(np.random.rand())  # noqa: NPY002 (the global state is what is tested)
            run.summary(torch=float(weight.detach()[0]), numpy=legacy, python=random.random())
            run.summary(bits=str(weight.dtype), grad=bool((weight * 2).requires_grad))
