"""What runs cost: recorded by every run, added up by the report, estimated before a launch."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runners import peers, places, provenance
from runners.estimate import Known
from runners.store import Store

COST = ("wall_seconds", "cpu_seconds", "gpu_seconds", "peak_memory_mb")
PAPER = """
title: Costs
experiments:
  limited: {grid: {method: toy/descent, task: toy/bowl, seed: range(4)}}
  wide: {grid: {method: toy/descent, task: toy/walk, ranks: [2], task.resources.hours: [12.0], seed: range(5)}}
  devices: {grid: {method: toy/descent, task: toy/where, device: [cuda], task.resources.gpus: [2], seed: [0]}}
  unknown: {grid: {method: [[toy/descent, toy/sign]], task: toy/race, seed: 0}}
  after: {grid: {method: toy/descent, task: toy/duel, seed: range(4)},
          needs: {opponent: {experiment: limited, seed: same}}}
  not_here: {grid: {method: toy/sign, task: toy/bowl}, scale: {laptop: {not_run: needs a cluster}}}
"""


def test_every_run_records_its_cost(command: Any, store: Store, outputs: Path) -> None:
    """And the report adds it up."""
    ran = command("runners.reproduce", "paper=toy", "scale=smoke", "experiment=bowl,race,prepared")
    assert ran.code == 0, ran.err
    results = list(store.results())
    for result in results:
        assert all(isinstance(result[key], float) for key in COST)
        assert result["wall_seconds"] > 0
        assert result["peak_memory_mb"] > 1
        assert result["gpu_seconds"] == 0
    report = outputs / "report" / "toy" / "smoke"
    verdicts = json.loads((report / "verdicts.json").read_text())
    total = verdicts["provenance"]
    assert total["cpu_seconds"] == pytest.approx(sum(result["cpu_seconds"] for result in results), abs=0.06)
    assert total["gpu_seconds"] == 0
    assert total["peak_memory_mb"] == max(result["peak_memory_mb"] for result in results)
    assert total["artifact_seconds"] >= 0


def test_a_meter_sees_memory_cpu_and_children() -> None:
    with provenance.Meter() as idle:
        time.sleep(0.2)
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    with provenance.Meter() as busy:
        subprocess.run([sys.executable, "-c", burn], check=True)
        block = bytearray(64 * 2**20)
    assert idle.cost["wall_seconds"] >= 0.2
    assert idle.cost["cpu_seconds"] < 0.2
    assert busy.cost["cpu_seconds"] >= 0.3
    assert busy.cost["peak_memory_mb"] > idle.cost["peak_memory_mb"] + 60
    assert len(block) > 0
    with provenance.Meter() as after:
        del block
    with provenance.Meter() as later:
        pass
    assert later.cost["peak_memory_mb"] < after.cost["peak_memory_mb"]  # each run has a peak of its own


def test_gpu_seconds(monkeypatch: Any) -> None:
    """A run that has used CUDA held its GPU for as long as it took."""
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        reset_peak_memory_stats=lambda: None,
        max_memory_allocated=lambda: 3 * 2**20,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    with provenance.Meter() as meter:
        time.sleep(0.05)
    assert meter.cost["gpu_seconds"] == meter.cost["wall_seconds"] >= 0.05
    assert meter.cost["peak_gpu_memory_mb"] == 3.0


def test_ranks_add_up(monkeypatch: Any) -> None:
    """CPU and GPU seconds and memory of all ranks; wall-clock time once."""
    import torch.distributed as dist

    mine = {"wall_seconds": 2.0, "cpu_seconds": 1.5, "gpu_seconds": 2.0, "peak_memory_mb": 100.0}
    other = {"wall_seconds": 2.1, "cpu_seconds": 0.5, "gpu_seconds": 2.1, "peak_memory_mb": 50.0}

    def gather(found: list[Any], given: Any) -> None:
        found[:] = [given, other]

    monkeypatch.setattr(dist, "all_gather_object", gather)
    whole = {"wall_seconds": 2.0, "cpu_seconds": 2.0, "gpu_seconds": 4.1, "peak_memory_mb": 150.0}
    assert peers.whole_cost(mine, "done", 2) == whole
    assert peers.whole_cost(mine, "diverged", 2) == {key: value * 2 for key, value in mine.items()} | {
        "wall_seconds": 2.0
    }


def estimates(text: str) -> dict[str, str]:
    return {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in text.splitlines()[1:])
    }


@pytest.mark.usefixtures("gpus")
def test_estimate(conf: Any, command: Any, store: Store) -> None:
    """By the limits in the YAML where nothing is known, by runs of the same size where there are some."""
    conf("paper/costs.yaml", PAPER)
    plan = ("runners.reproduce", "paper=costs", "dry_run=true", "launcher.gpus=[0,1]")
    found = estimates(command(*plan).err)
    assert found["limited"] == "4 runs; at most 4.0 core-hours (by resources.hours)"
    assert found["wide"] == "5 runs; at most 120 core-hours (by resources.hours)"
    assert found["unknown"].startswith("1 run; not known for 1 (no run like them is stored or published")
    assert found["after (follows limited)"].startswith("4 runs; not known for 4")
    assert found["not_here"] == "not run (needs a cluster)"
    assert found["in all"].startswith("15 runs; at most 124 core-hours (by resources.hours); not known for 6")

    one = ("runners.run", "method=toy/descent", "task=toy/bowl")
    for seed in (0, 7):
        assert command(*one, f"seed={seed}").code == 0
    assert command(*one, "task.steps=3").code == 0  # of another size: says nothing
    for path in store.root.glob("toy/descent/bowl/*/result.json"):
        result = json.loads(path.read_text())
        seconds = 7200.0 if result["config"]["task"]["steps"] == 20 else 1.0
        path.write_text(json.dumps(result | {"wall_seconds": seconds}))
    found = estimates(command(*plan).err)
    assert found["limited"] == "4 runs, 1 of them done; about 6.0 core-hours (by earlier runs)"
    assert found["in all"].startswith(
        "15 runs, 1 of them done; about 126 core-hours (by earlier runs and resources.hours); not known for 6"
    )


@pytest.mark.usefixtures("gpus")
def test_gpu_hours(conf: Any, command: Any) -> None:
    conf("paper/costs.yaml", PAPER.replace("gpus: [2]", "gpus: [2], task.resources.hours: [3.0]"))
    plan = ("runners.reproduce", "paper=costs", "dry_run=true", "launcher.gpus=[0,1]", "experiment=devices")
    assert estimates(command(*plan).err)["devices"] == (
        "1 run; at most 3.0 core-hours and 6.0 GPU-hours (by resources.hours)"
    )


def test_published_runs_tell_where_none_is_stored(conf: Any, command: Any) -> None:
    """Those of the method on the task, else of any method on it, at the same scale."""
    conf("paper/costs.yaml", PAPER)
    for scale, seconds in (("laptop", 1800.0), ("paper", 9e9)):
        folder = places.results() / "other" / scale
        folder.mkdir(parents=True)
        (folder / "verdicts.json").write_text("{}")
        rows = [
            ("toy/sign", "toy/bowl", 5.0),
            ("toy/descent", "toy/bowl", seconds),
            ("toy/sign", "toy/duel", 900),
        ]
        lines = [f"id,experiment,{method},{task},0,done,{cost}" for method, task, cost in rows]
        (folder / "runs.csv").write_text("\n".join(["id,experiment,method,task,seed,status,seconds", *lines]))
    ended = command("runners.reproduce", "paper=costs", "dry_run=true", "experiment=limited,after,unknown")
    found = estimates(ended.err)
    assert found["limited"] == "4 runs; about 2.0 core-hours (by published runs)"
    assert found["after (follows limited)"] == "4 runs; about 1.0 core-hours (by published runs)"
    assert found["in all"] == (
        "9 runs; about 3.0 core-hours (by published runs); "
        "not known for 1 (no run like them is stored or published, no resources.hours)"
    )


def test_the_estimate_comes_before_the_first_run(start: Any, outputs: Path) -> None:
    """At scale=paper, unasked."""
    sweep = start("runners.reproduce", "paper=toy", "scale=paper", "experiment=huge")
    line = sweep.stderr.readline()
    assert line == "toy at scale paper:\n"
    assert sweep.stderr.readline() == "  huge: 5 runs; at most 5.0 core-hours (by resources.hours)\n"
    assert sweep.wait(120) == 0


def test_known_ignores_seeds_and_opponents() -> None:
    def record(seed: int, opponent: str, seconds: float = 0.0) -> dict[str, Any]:
        task = {"_name_": "toy/duel", "steps": 9, "opponent": {"_run_": opponent, "folder": opponent}}
        config = {"method": {"_name_": "toy/descent", "lr": 0.1}, "task": task, "seed": seed}
        return {"config": config, "wall_seconds": seconds}

    known = Known([record(0, "a", 1.0), record(1, "b", 3.0)])
    assert known.seconds(record(2, "c")["config"]) == 2.0
    other = record(2, "c")["config"]
    other["task"]["steps"] = 10
    assert known.seconds(other) is None
