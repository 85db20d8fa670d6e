"""Sweeps on a real Slurm (`python scripts/slurm_up.py` starts one of one node)."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.store import Store
from tests.runners.conftest import HOME, PLUGIN, kill_group
from tests.runners.walks import attempts, check_undisturbed, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.exclusive, pytest.mark.usefixtures("slurm")]

REPRODUCE = ("runners.reproduce", "launcher=slurm", "launcher.poll_seconds=0.2")
SUBMIT = ("runners.cluster", "submit", "scale=laptop")


def paper(conf: Any, *experiments: str) -> None:
    """A paper `walks` of these experiments."""
    conf("paper/walks.yaml", "title: Walks\nexperiments:\n" + "".join(f"  {line}\n" for line in experiments))


def walks(name: str, grid: str, more: str = "") -> str:
    return f"{name}: {{grid: {{method: toy/descent, task: toy/walk, {grid}}}{more}}}"


def in_queue() -> list[str]:
    """Our jobs that wait or run (`<job>_<task>` of an array)."""
    listed = subprocess.run(
        ["squeue", "-h", "-r", "-n", "reprise", "-o", "%F_%K"], capture_output=True, text=True
    ).stdout.split()
    return [name.removesuffix("_N/A") for name in listed]


def wait_for_walk(root: Path, count: int = 1, lines: int = 5) -> list[Path]:
    """Folders of walks, as soon as so many have gone a few steps."""

    def going() -> list[Path]:
        metrics = sorted(root.glob("toy/descent/walk/*/metrics.jsonl"))
        found = [path.parent for path in metrics if path.read_text().count("\n") >= lines]
        return found if len(found) >= count else []

    return wait_for(going, 120)


def sent(root: Path) -> Counter[str]:
    """How many jobs have carried each run."""
    files = [*root.glob("slurm/jobs/*.json"), *root.glob("slurm/jobs/*.left")]
    return Counter(run for path in files for run in json.loads(path.read_text()))


@pytest.fixture(autouse=True)
def _clean_queue() -> Iterator[None]:
    yield
    # Jobs of a test that failed would hold up the next one; the walk out of time below is not one of them.
    ours = {job for job in in_queue() if job not in _spared()}
    if ours:
        subprocess.run(["scancel", "--quiet", *ours], check=False)


def _spared() -> set[str]:
    folder = Path(os.environ.get("REPRISE_TEST_LONG", "/nowhere")) / "outputs" / "slurm" / "jobs"
    return {path.stem for path in folder.glob("*.json")}


@pytest.fixture(scope="module")
def out_of_time(tmp_path_factory: pytest.TempPathFactory, slurm: None) -> Iterator[Any]:
    """A sweep of one walk that is longer than its job's limit of a minute. It runs beside the other tests."""
    root = tmp_path_factory.mktemp("long")
    (root / "conf" / "paper").mkdir(parents=True)
    grid = "seed: [0], task.steps: [400], task.pause: [0.1]"
    (root / "conf" / "paper" / "long.yaml").write_text(
        f"title: Long\nexperiments:\n  {walks('long', grid)}\n"
    )
    env = os.environ | {
        "PYTHONPATH": str(PLUGIN),
        "REPRISE_CONF": str(root / "conf"),
        "REPRISE_OUTPUTS": str(root / "outputs"),
        "REPRISE_RESULTS": str(root / "results"),
    }
    os.environ["REPRISE_TEST_LONG"] = str(root)
    limits = ("launcher.minutes=1", "launcher.signal_seconds=10")
    command = [sys.executable, "-m", *REPRODUCE, "paper=long", *limits]
    process = subprocess.Popen(
        command, cwd=HOME, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    yield process, root / "outputs"
    kill_group(process)
    process.communicate()
    subprocess.run(["scancel", "--quiet", *_spared()], check=False) if _spared() else None
    del os.environ["REPRISE_TEST_LONG"]


@pytest.mark.usefixtures("out_of_time")
def test_an_array_of_20_and_a_controller_that_restarts(
    conf: Any, start: Any, store: Store, tmp_path: Path, monkeypatch: Any
) -> None:
    """Runs and numbers are as anywhere else; the user's own set-up lines stand in the cluster profile."""
    paper(conf, walks("walks", "seed: range(20), task.checkpoints: [false]"))
    (tmp_path / "cluster.yaml").write_text(
        f"slurm: {{chunk_runs: 1, setup: ['touch {tmp_path}/set-up-$SLURM_ARRAY_TASK_ID'], extra: {{nice: 3}}}}\n"
    )
    monkeypatch.setenv("REPRISE_CLUSTER", str(tmp_path / "cluster.yaml"))
    sweep = start(*REPRODUCE, "paper=walks")
    wait_for(lambda: len(list(store.results())) >= 2, 200)
    subprocess.run([sys.executable, str(HOME / "scripts" / "slurm_up.py"), "restart-controller"], check=True)
    out, err = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, out + err
    results = list(store.results())
    assert sorted(result["config"]["seed"] for result in results) == list(range(20))
    for result in results:
        check_undisturbed(result)
        assert attempts(Path(result["folder"])) == [(0, 0)]
    jobs = {path.stem for path in store.root.glob("slurm/jobs/*.*")}
    assert len(jobs) == 20
    assert len({job.partition("_")[0] for job in jobs}) == 1  # one array
    assert len(list(tmp_path.glob("set-up-*"))) == 20


def test_a_signal_requeues_one_task_of_an_array(conf: Any, start: Any, store: Store) -> None:
    """It saves, goes back into the queue and finishes with the undisturbed numbers; the other task never notices."""
    paper(conf, walks("walks", "seed: [0, 1], task.steps: [80], task.pause: [0.05]"))
    sweep = start(*REPRODUCE, "paper=walks", "launcher.chunk_runs=1")
    first = wait_for_walk(store.root)[0]
    job = next(name for name, runs in jobs_of(store.root).items() if first.name in runs)
    subprocess.run(["scancel", "--signal=USR2", job], check=True)
    out, err = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, out + err
    assert set(sent(store.root).values()) == {1}  # Slurm's own requeue, no new job
    for result in store.results():
        check_undisturbed(result)
        starts = [step for _, step in attempts(Path(result["folder"]))]
        if result["id"] == first.name:
            assert len(starts) == 2
            assert starts[1] > 0
        else:
            assert starts == [0]


def jobs_of(root: Path) -> dict[str, list[str]]:
    return {path.stem: list(json.loads(path.read_text())) for path in root.glob("slurm/jobs/*.json")}


def test_two_ranks_in_an_allocation(conf: Any, start: Any, store: Store) -> None:
    """Told to stop, the group saves together; the requeued job goes on with a new one."""
    paper(conf, walks("walks", "seed: [0], ranks: [2], task.steps: [80], task.pause: [0.05]"))
    sweep = start(*REPRODUCE, "paper=walks")
    folder = wait_for_walk(store.root)[0]
    (job,) = jobs_of(store.root)
    subprocess.run(["scancel", "--signal=USR2", job], check=True)
    out, err = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, out + err
    (result,) = store.results()
    check_undisturbed(result)
    starts = attempts(folder)
    assert sorted(starts[:2]) == [(0, 0), (1, 0)]
    assert len(starts) == 4
    assert starts[2][1] == starts[3][1] > 0


def test_cancelled_jobs_and_dead_ones(conf: Any, start: Any, store: Store) -> None:
    """A cancelled job is sent again, and goes on; a run that kills its job is found out and hides no other."""
    bad = "dead: {grid: {method: toy/bad, task: toy/bowl, seed: [0], method.how: [die]}}"
    good = "good: {grid: {method: toy/descent, task: toy/bowl, seed: range(3)}}"
    paper(conf, bad, good, walks("walks", "seed: [0], task.steps: [80], task.pause: [0.05], ranks: [1]"))
    # dead, good and walk share a job until the dead one has taken it down
    sweep = start(*REPRODUCE, "paper=walks", "launcher.resubmit=1", "launcher.chunk_minutes=9000")
    folder = wait_for_walk(store.root)[0]
    job = wait_for(lambda: next((n for n, runs in jobs_of(store.root).items() if folder.name in runs), None))
    subprocess.run(["scancel", job], check=True)
    out, err = sweep.communicate(timeout=300)
    assert sweep.returncode == 1, out + err
    assert "its job vanished without a result 2 times" in err
    assert "task 0: Killed" in err  # what Slurm says of it
    assert "1 runs failed" in err
    results = {result["config"]["task"]["_name_"]: result for result in store.results()}
    assert Counter(result["config"]["method"]["_name_"] for result in store.results()) == {"toy/descent": 4}
    check_undisturbed(results["toy/walk"])
    starts = [step for _, step in attempts(folder)]
    assert starts[0] == 0
    assert starts[-1] > 0


def test_code_edited_between_submit_and_start(conf: Any, start: Any, store: Store, plugin_copy: Any) -> None:
    paper(conf, "bowls: {grid: {method: toy/descent, task: toy/bowl, seed: [0]}}")
    extra = "launcher.extra={hold: true}"
    sweep = start(*REPRODUCE, "paper=walks", extra, env=plugin_copy.env)
    job = wait_for(lambda: list(jobs_of(store.root)))[0]
    helper = plugin_copy.package / "helper.py"
    helper.write_text(helper.read_text().replace("value * factor", "value * factor * 2"))
    subprocess.run(["scontrol", "release", job], check=True)
    _, err = sweep.communicate(timeout=200)
    assert sweep.returncode == 1
    assert "the code changed since this run was submitted: submit it again" in err
    assert not list(store.results())


def test_submit_twice_at_once_then_what_follows(conf: Any, start: Any, process: Any, store: Store) -> None:
    """Each run is sent once; the experiment that needs others is sent when they are done; an artifact comes first."""
    bowls = "bowls: {grid: {method: toy/descent, task: toy/bowl, seed: range(4)}}"
    needs = "needs: {opponent: {experiment: bowls, seed: same}}"
    duels = f"duels: {{grid: {{method: toy/sign, task: toy/duel, seed: range(4)}}, {needs}}}"
    paper(conf, bowls, duels, "prepared: {grid: {method: toy/descent, task: toy/prepared, seed: range(2)}}")
    submit = (*SUBMIT, "paper=walks", "launcher.chunk_runs=2")
    both = [start(*submit) for _ in range(2)]
    for one in both:
        out, err = one.communicate(timeout=200)
        assert one.returncode == 0, out + err
    assert set(sent(store.root).values()) == {1}
    assert len(sent(store.root)) == 5  # four bowls and the artifact
    status = process("runners.cluster", "status", "paper=walks", "scale=laptop")
    assert "duels: follows what it needs" in status.out
    wait_for(lambda: not in_queue() or set(in_queue()) <= _spared(), 120)
    status = process("runners.cluster", "status", "paper=walks", "scale=laptop")
    assert "bowls: 4 done" in status.out
    second = process(*submit)
    assert "sent 6 runs in 3 jobs" in second.out, second.out + second.err
    wait_for(lambda: len(list(store.results())) == 10, 120)
    wait_for(lambda: set(in_queue()) <= _spared(), 60)
    last = process(*submit)
    assert "all that can be done is done" in last.out, last.out + last.err
    assert set(sent(store.root).values()) == {1}


def test_cancel(conf: Any, process: Any, store: Store) -> None:
    paper(conf, walks("walks", "seed: range(3), task.steps: [2000], task.pause: [0.1]"))
    submitted = process(*SUBMIT, "paper=walks", "launcher.chunk_runs=1")
    assert "sent 3 runs in 3 jobs" in submitted.out, submitted.err
    status = process("runners.cluster", "status", "paper=walks", "scale=laptop")
    assert any(word in status.out for word in ("waiting", "running"))
    cancelled = process("runners.cluster", "cancel", "paper=walks")
    assert cancelled.out == "3 jobs of walks cancelled\n"
    status = process("runners.cluster", "status", "paper=walks", "scale=laptop")
    assert "waiting" not in status.out
    assert "running" not in status.out


def test_out_of_time(out_of_time: Any) -> None:
    """Slurm's own warning before the limit: the walk saves, is requeued, and ends with the undisturbed numbers."""
    process, root = out_of_time
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    (result,) = Store(root).results()
    check_undisturbed(result)
    starts = [step for _, step in attempts(Path(result["folder"]))]
    assert len(starts) > sent(root)[result["id"]]  # by Slurm's own requeue, not by a new job
    assert starts == sorted(starts)
    assert starts[1] > 0
