"""The project as a project: the lock serves every extra, make hands its variables on, absent data skips by name."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

HOME = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]


def _lock() -> dict[str, str]:
    lines = [
        line for line in (HOME / "requirements.lock").read_text().splitlines() if not line.startswith("#")
    ]
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!]+)", line) for line in lines]
    assert all(pins), [
        line for line, pin in zip(lines, pins, strict=True) if pin is None
    ]  # no paths, suffixes
    return {canonicalize_name(pin[1]): pin[2] for pin in pins if pin}


def _setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reprise_setup", HOME / "scripts" / "setup.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lock_pins_every_dependency_within_its_range() -> None:
    pins = _lock()
    bare = [name for names in PROJECT["tool"]["reprise"]["no-deps"].values() for name in names]
    asked = PROJECT["project"]["dependencies"] + [line for lines in EXTRAS.values() for line in lines] + bare
    for line in asked:
        requirement = Requirement(line)
        if requirement.name == "reprise":
            continue
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(Version(version), prereleases=True), (line, version)


def test_the_extra_all_is_all_of_them() -> None:
    (line,) = EXTRAS["all"]
    assert Requirement(line).extras == set(EXTRAS) - {"all"}


@pytest.mark.parametrize("yaml", sorted((HOME / "conf" / "paper").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_extras_of_a_paper_exist(yaml: Path) -> None:
    assert _setup().paper_extras(yaml) <= set(EXTRAS)


@pytest.mark.parametrize(
    ("text", "extras"),
    [
        ("title: x\n", set()),
        ("extras: []\n", set()),
        ("extras: [llm, 'rl']   # both\ntitle: x\n", {"llm", "rl"}),
        ("extras:\n  - llm\n  - rl  # games\nnames:\n  - other\n", {"llm", "rl"}),
    ],
)
def test_extras_are_read_without_a_yaml_library(text: str, extras: set[str], tmp_path: Path) -> None:
    (tmp_path / "paper.yaml").write_text(text)
    assert _setup().paper_extras(tmp_path / "paper.yaml") == extras


def _make(*arguments: str, **environment: str) -> str:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(
        ["make", "-n", *arguments],
        cwd=HOME,
        env=path | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_make_hands_on_what_its_command_line_says() -> None:
    commands = _make(
        "reproduce-hdm", "sclae=smoke", "seeds=range(5)", "method.name=it's", "ARGS=task.dim=3", "JOBS=1"
    )
    assert "scripts/setup --paper hdm" in commands
    words = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {commands.splitlines()[-1]}"], capture_output=True, text=True
    )
    assert words.stdout.splitlines()[3:] == [
        "paper=hdm", "method.name=it's", "sclae=smoke", "seeds=range(5)", "task.dim=3",
    ]  # fmt: skip


def test_make_hands_on_nothing_from_the_environment() -> None:
    assert _make("list", scale="smoke", seeds="3").split()[-2:] == ["-m", "runners.list"]


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--paper", "radzo"), "no paper 'radzo'; near: radazo\n"),
        (("--paper", "radzo", "slurm"), "no paper 'radzo'; near: radazo\n"),
        (("--kind", "bandt", "--papers"), "no kind 'bandt'; near: bandit\n"),
        (("--kind", "", "--papers"), "which kind? make compare kind=<one of bandit>\n"),
    ],
)
def test_a_misspelt_name_installs_nothing(
    arguments: tuple[str, ...], said: str, installed: bool, tmp_path: Path
) -> None:
    for name in ("scripts/setup", "scripts/setup.py", "pyproject.toml", "requirements.lock"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(HOME / name, tmp_path / name)
    (tmp_path / "conf" / "paper").mkdir(parents=True)
    (tmp_path / "conf" / "paper" / "radazo.yaml").write_text("extras: [llm]\n")
    (tmp_path / "conf" / "method" / "bandit").mkdir(parents=True)
    (tmp_path / "conf" / "method" / "bandit" / "ucb.yaml").touch()
    if installed:  # something, but not what is asked for
        (tmp_path / ".venv" / "bin").mkdir(parents=True)
        (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    done = subprocess.run(
        [tmp_path / "scripts" / "setup", *arguments],
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == said
    assert (tmp_path / ".venv").exists() == installed
    assert not (tmp_path / ".venv" / "reprise-setup.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("strict", "outcome"), [("", "skipped"), ("1", "failed")])
def test_absent_data_skips_by_name_and_fails_where_it_is_required(
    strict: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(HOME / "tests" / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "test_it.py").write_text("def test_it(require_data):\n    require_data('libsvm/none')\n")
    monkeypatch.setenv("REPRISE_DATA", str(tmp_path))
    monkeypatch.setenv("REPRISE_REQUIRE_DATA", strict)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rsf", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"1 {outcome}" in done.stdout
    assert "data absent: libsvm/none is not in REPRISE_DATA" in done.stdout
