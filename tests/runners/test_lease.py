"""Leases: one process at a time works on a run, whatever dies when."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runners import lease
from runners.lease import Claims
from runners.places import HOME

# Goes through folders in an order of its own; what it has claimed it "runs" (a line before and after) once.
WORKER = """
import random, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from runners.lease import Claims
root, seed = Path(sys.argv[2]), int(sys.argv[3])
claims, draws = Claims(root), random.Random(seed)
folders = [root / str(i) for i in range(int(sys.argv[4]))]
while True:
    left = [folder for folder in folders if not (folder / "done").exists()]
    if not left:
        break
    folder = draws.choice(left)
    with claims.claim(folder) as ours:
        if ours and not (folder / "done").exists():
            with (folder / "log").open("a") as log:
                log.write(f"begin {claims.token}\\n")
            time.sleep(draws.uniform(0, 0.004))
            with (folder / "log").open("a") as log:
                log.write(f"end {claims.token}\\n")
            (folder / "done").touch()
"""


def worker(root: Path, seed: int, folders: int) -> "subprocess.Popen[bytes]":
    """Start one process that works through the folders."""
    return subprocess.Popen([sys.executable, "-c", WORKER, str(HOME), str(root), str(seed), str(folders)])


def gone(root: Path) -> str:
    """Token of a process that claimed ``root/run`` and was killed."""
    code = (
        f"import sys, os, signal; sys.path.insert(0, {str(HOME)!r})\n"
        f"from pathlib import Path; from runners.lease import Claims\n"
        f"claims = Claims(Path({str(root)!r}))\n"
        f"with claims.claim(Path({str(root)!r}) / 'run'):\n"
        f"    print(claims.token, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return ended.stdout.strip()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_a_claim_is_held_and_given_back(run: Path) -> None:
    claims = Claims(run.parent)
    with claims.claim(run) as ours:
        assert ours
        assert claims.holder(run) == claims.token
        with Claims(run.parent).claim(run) as theirs:
            assert not theirs
        assert claims.holder(run) == claims.token
    assert claims.holder(run) is None
    assert list(run.iterdir()) == []
    with Claims(run.parent).claim(run) as later:
        assert later


def test_a_claim_is_given_back_when_the_run_raises(run: Path) -> None:
    claims = Claims(run.parent)
    with pytest.raises(RuntimeError), claims.claim(run):
        raise RuntimeError
    with claims.claim(run) as ours:
        assert ours


def test_a_dead_process_s_claim_is_taken_over_at_once(run: Path) -> None:
    token = gone(run.parent)
    assert (run / "claim").read_text() == token
    started = time.monotonic()
    claims = Claims(run.parent)
    assert not claims.alive(token)
    assert claims.holder(run) is None
    with claims.claim(run) as ours:
        assert ours
        assert claims.holder(run) == claims.token
    assert time.monotonic() - started < lease.LEASE_SECONDS / 2


def test_a_stopped_process_keeps_its_claim(run: Path) -> None:
    """Suspended (as by Ctrl-Z), it is alive on this host: its run is not taken away."""
    code = (
        f"import sys, time; sys.path.insert(0, {str(HOME)!r})\n"
        f"from pathlib import Path; from runners.lease import Claims\n"
        f"root = Path({str(run.parent)!r})\n"
        f"with Claims(root).claim(root / 'run'):\n    print('held', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGSTOP)
        with Claims(run.parent).claim(run) as ours:
            assert not ours
    finally:
        process.kill()
        process.communicate()
    with Claims(run.parent).claim(run) as ours:
        assert ours


def test_a_silent_host_loses_its_claim_after_the_lease(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.6)
    token = gone(run.parent)
    path = run.parent / ".leases" / f"{token}.lease"
    other_host = path.read_text().replace(f"host={os.uname().nodename}", "host=elsewhere")
    path.write_text(other_host.replace(f"duration={60.0}", "duration=0.6"))
    claims = Claims(run.parent)
    with claims.claim(run) as ours:
        assert not ours
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with claims.claim(run) as ours:
            if ours:
                break
        time.sleep(0.1)
    assert ours


def test_a_claim_that_was_taken_over_is_not_given_back_by_its_old_holder(run: Path) -> None:
    old, new = Claims(run.parent), Claims(run.parent)
    with old.claim(run):
        (run / "claim").unlink()
        os.link(new.folder / f"{new.token}.claim", run / "claim")
    assert (run / "claim").read_text() == new.token


@pytest.mark.parametrize("content", ["", "nobody-1-2", "../../etc/passwd"])
def test_a_claim_of_nobody_is_taken_over(run: Path, content: str) -> None:
    (run / "claim").write_text(content)
    with Claims(run.parent).claim(run) as ours:
        assert ours


def test_what_killed_processes_left_is_tidied_and_nothing_else(run: Path) -> None:
    token = gone(run.parent)
    living = Claims(run.parent)
    names = {f"{living.token}.lease", f"{living.token}.claim"}
    (living.folder / f"{token}.progress").write_text("x 1 2")
    Claims(run.parent).tidy()
    assert {path.name for path in living.folder.iterdir()} == names
    living.close()
    assert list(living.folder.iterdir()) == []
    Claims(run.parent / "nowhere").tidy()


def check_log(root: Path, folders: int) -> None:
    """Each folder ended once, and nobody began while another living process was in it."""
    for i in range(folders):
        lines = [line.split() for line in (root / str(i) / "log").read_text().splitlines()]
        ends = [token for word, token in lines if word == "end"]
        assert len(ends) == 1, (i, lines)
        assert lines[-1] == ["end", ends[0]]
        assert lines[-2] == ["begin", ends[0]]


def test_processes_that_compete_run_everything_once(tmp_path: Path) -> None:
    folders = 60
    for i in range(folders):
        (tmp_path / str(i)).mkdir()
    processes = [worker(tmp_path, seed, folders) for seed in range(4)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 4
    check_log(tmp_path, folders)
    assert not list(tmp_path.glob("*/claim*"))


@pytest.mark.slow
def test_killed_processes_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    folders, draws = 300, random.Random(0)
    for i in range(folders):
        (tmp_path / str(i)).mkdir()
    processes = [worker(tmp_path, seed, folders) for seed in range(3)]
    for kill in range(15):
        time.sleep(draws.uniform(0.05, 0.3))
        victim = draws.randrange(3)
        processes[victim].kill()
        processes[victim].wait()
        processes[victim] = worker(tmp_path, 100 + kill, folders)
    assert [process.wait(timeout=120) for process in processes] == [0] * 3
    for i in range(folders):
        lines = [line.split() for line in (tmp_path / str(i) / "log").read_text().splitlines()]
        inside: set[str] = set()
        for word, token in lines:
            inside = {token} if word == "begin" else inside - {token}
            assert word == "begin" or not inside, lines  # an end belongs to the last begin
        assert sum(word == "end" for word, _ in lines) in (1, 2), (
            lines
        )  # 2: killed between its end and its mark
