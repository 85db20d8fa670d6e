"""What repeats over a leading axis gain over a loop of single ones.

    .venv/bin/python scripts/bench_vectorised.py [gs_poweropt ...]

CPU seconds of one process with one thread: all repeats at once, and the same repeats one by one (a sample of them,
scaled up). Both give the same numbers; the script checks it. Other papers add a function to `BENCHES`.
"""

# ruff: noqa: E402 (thread counts and the search path come before the libraries)
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME))

import torch
import yaml
from torch import Tensor


def report(label: str, together: float, alone: float) -> None:
    """One line."""
    print(f"{label:44} at once {together:8.2f} s   one by one {alone:9.1f} s   gain {alone / together:6.1f}")


def gs_poweropt() -> None:
    """Tables 1 and 2 of GS-PowerOpt: 100 repeats of one grid point of each method, and the whole grids from those."""
    from methods.common.zeroth_order import ZerothOrder
    from methods.zeroth_order.gs_poweropt import GSPowerOpt
    from methods.zeroth_order.slgh import SLGH
    from methods.zeroth_order.std_homotopy import STDHomotopy
    from methods.zeroth_order.zo_adamm import ZOAdaMM
    from tasks.zeroth_order import functions

    methods = {
        "epgs": partial(GSPowerOpt, N=2.0, decay_steps=1000),
        "pgs": partial(GSPowerOpt, variant="pgs", N=5, shift=12000.0, nonpositive="power", decay_steps=5000),
        "std_homotopy": partial(STDHomotopy, shift=22.7),
        "slgh_d": partial(SLGH, lr=1e-4, eta=0.001),
        "slgh_r": partial(SLGH, lr=1e-4),
        "zo_adamm_decaying": partial(
            ZOAdaMM, lr=0.1, mu=1.0, amsgrad=True, direction="radial", decay_steps=1000
        ),
        "zo_sgd_decaying": partial(
            ZerothOrder, rule=torch.optim.SGD, lr=1e-4, mu=1.0, direction="radial", decay_steps=1000
        ),
    }
    repeats, sample, steps, grids = 100, 3, 100, _grid_sizes()
    for table, samples, task in (("Table 1", 10, "global_ackley"), ("Table 2", 100, "global_rosenbrock")):
        node = yaml.safe_load((HOME / f"conf/task/zeroth_order/{task}.yaml").read_text())
        function = getattr(functions, node["function"]["_target_"].rpartition(".")[2])
        scale, sums = node["steps"] / steps, [0.0, 0.0]
        center = torch.tensor(node["center"], dtype=torch.float64).expand(2)

        def search(
            make: Callable, members: range, center=center, function=function, samples=samples
        ) -> Tensor:
            starts = [
                center + torch.randn(2, generator=torch.Generator().manual_seed(i)).double() for i in members
            ]
            x = torch.stack(starts).requires_grad_()
            generators = [torch.Generator().manual_seed(1000 + i) for i in members]
            optimizer = make([x], n_samples=samples, generator=generators)
            for _ in range(steps):
                optimizer.step(batched=function)
            return x.detach()

        for name, make in methods.items():
            search(make, range(1))  # libraries load
            begin = time.process_time()
            together = search(make, range(repeats))
            middle = time.process_time()
            single = torch.cat([search(make, range(i, i + 1)) for i in range(sample)])
            end = time.process_time()
            assert torch.equal(single.nan_to_num(), together[:sample].nan_to_num()), name
            costs = scale * (middle - begin), scale * (end - middle) * repeats / sample
            report(f"{table}, {name}, {repeats} repeats", *costs)
            for i, cost in enumerate(costs):
                sums[i] += cost * grids[name, task]
        points = sum(size for (name, where), size in grids.items() if name in methods and where == task)
        report(f"{table}, its {points} grid points", *sums)


def _grid_sizes() -> dict[tuple[str, str], int]:
    """Grid points of each method and task in the paper's tables."""
    paper = yaml.safe_load((HOME / "conf/paper/gs_poweropt.yaml").read_text())
    sizes = {}
    for rule in paper["experiments"]["tables"]["tune"]:
        names = rule["when"]["method"]
        for name in names if isinstance(names, list) else [names]:
            place = name.rpartition("/")[2], rule["when"]["task"].rpartition("/")[2]
            sizes[place] = math.prod(len(values) for values in rule["grid"].values())
    return sizes


def sgd_time() -> None:
    """2,000 hitting times of SGD on the three-hump camel at E/η = 8."""
    import numpy as np

    from methods.minimize.gradient_noise import Gaussian
    from methods.minimize.sgd_time import hitting_time
    from tasks.minimize.landscapes import Ball, Camel

    runs, sample, std, start = 2000, 3, 4.4, np.array([-1.747552, 0.873776])
    eta = 1.157446 / std**2 / 8

    def search(members: range) -> np.ndarray:
        generators = [np.random.default_rng(i) for i in members]
        times = hitting_time(
            Camel().gradient,
            Gaussian(std),
            eta,
            start,
            Ball([0, 0], 0.3),
            len(members),
            10**8,
            rng=generators,
        )
        return times.steps

    begin = time.process_time()
    together = search(range(runs))
    middle = time.process_time()
    single = np.concatenate([search(range(i, i + 1)) for i in range(sample)])
    end = time.process_time()
    assert (single == together[:sample]).all()
    report(f"{runs} runs at E/η = 8", middle - begin, (end - middle) * together.sum() / single.sum())


def signsgd() -> None:
    """Tracking in 400 dimensions, and the equation of the risk in 2,000."""
    import numpy as np

    from methods.minimize.signsgd import Gaussian, risk_ode

    repeats(
        "40 repeats, d = 400", "minimize/signsgd", "minimize/one_pass", {"inputs.dim": 400, "repeats": 40}
    )
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((2000, 2000)))[0]
    K = (turn * np.linspace(0.2, 2.0, 2000)) @ turn.T
    begin = time.process_time()
    risk_ode(K, np.full(2000, 0.02), 0.7, Gaussian(0.5))(np.linspace(0, 10, 50))
    print(f"{'equation of the risk, d = 2,000, K rotated':44} {time.process_time() - begin:14.2f} s")


def shuffling() -> None:
    """Tug of war and least absolute deviations."""
    for name in ("tug_of_war", "least_absolute_deviations"):
        repeats(f"200 repeats, {name}", "minimize/random_reshuffle", f"minimize/{name}", {"repeats": 200})


def two_step_iht() -> None:
    """Sparse regression with gradients."""
    repeats("50 repeats, iht_2sp", "minimize/iht_2sp", "minimize/sparse_regression", {"repeats": 50})


def repeats(label: str, method: str, task: str, leaves: dict[str, int]) -> None:
    """A task with `repeats`, through the harness's own recorder, against the same with one repeat."""
    from runners import build, compose
    from runners.recorder import Recorder

    def search(count: int) -> tuple[float, dict[str, list[float]]]:
        triples = [(f"task.{leaf}", value, "") for leaf, value in (leaves | {"repeats": count}).items()]
        config = compose.compose_run(method, task, lambda _: triples)
        parts = [build.build(config[part], part, resolve_run=dict, top=True) for part in ("task", "method")]
        with tempfile.TemporaryDirectory() as folder:
            run = Recorder(Path(folder), config)
            begin = time.process_time()
            parts[0].evaluate(parts[1], run)
            seconds = time.process_time() - begin
            run.close(ended=True)
            line = (Path(folder) / "rows.jsonl").read_text().splitlines()[0]
        return seconds, json.loads(line)["columns"]

    search(1)  # libraries load
    together, row = search(leaves["repeats"])
    alone, single = search(1)
    for name, (value, *_) in row.items():  # sums of a batch may be taken in another order
        close = value == single[name][0] or math.isclose(value, single[name][0], rel_tol=1e-6, abs_tol=1e-12)
        assert close, (name, value, single[name][0])
    report(label, together, alone * leaves["repeats"])


BENCHES = {
    "gs_poweropt": gs_poweropt,
    "sgd_time": sgd_time,
    "signsgd": signsgd,
    "shuffling": shuffling,
    "two_step_iht": two_step_iht,
}


def main() -> None:
    """The benches that the command line names, or all."""
    names = sys.argv[1:] or list(BENCHES)
    for name in names:
        if name not in BENCHES:
            raise SystemExit(f"unknown bench '{name}' (one of: {', '.join(BENCHES)})")
        print(name)
        BENCHES[name]()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
