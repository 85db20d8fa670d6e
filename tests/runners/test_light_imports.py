"""`--help` and the lists answer at once: no numerical library is imported on the way."""

import subprocess
import sys

import pytest

from runners.places import HOME

HEAVY = ("torch", "numpy", "pandas", "scipy.stats", "matplotlib", "hydra", "omegaconf", "transformers")
COMMANDS = sorted(
    path.stem
    for path in (HOME / "runners").glob("*.py")
    if "    cli.main(" in path.read_text(encoding="utf-8")
)
PROBE = """
import runpy, sys
module, sys.argv = sys.argv[1], sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__")
except SystemExit as ending:
    assert not ending.code, ending.code
sys.stderr.write("\\n".join(sys.modules))
"""


def imported(module: str, *arguments: str) -> tuple[str, set[str]]:
    """What a command line prints, and every module it has imported when it ends."""
    command = [sys.executable, "-c", PROBE, f"runners.{module}", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=HOME, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, set(ended.stderr.split())


def test_every_command_is_found():
    assert {"list", "reproduce", "run", "report", "show", "fetch", "verify"} <= set(COMMANDS)


@pytest.mark.parametrize("module", COMMANDS)
def test_help_is_light(module):
    printed, modules = imported(module, "--help")
    assert printed.startswith("usage: ")
    assert "runners.cli" in modules  # the probe does see what is imported
    assert not modules & set(HEAVY)


@pytest.mark.parametrize("what", ["papers", "methods", "tasks", "launchers", "trackers"])
def test_lists_are_light(what):
    _, modules = imported("list", what)
    assert "runners.places" in modules
    assert not modules & set(HEAVY)
