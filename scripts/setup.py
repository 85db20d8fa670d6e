"""Creates `.venv` and installs the project with the extras asked for, once; silent when nothing is to do.

    scripts/setup llm dev         the extras by name
    scripts/setup --paper hdm     those that conf/paper/hdm.yaml names
    scripts/setup --papers dev    those that any paper names, and dev
    scripts/setup --kind bandit   ... if there are methods of that kind

A name that is misspelt installs nothing.

Standard library only: it runs before anything is installed. What is installed is noted in
`.venv/reprise-setup.json`; a change of the dependencies, the lock or Python makes the note void.
"""

import argparse
import difflib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
VENV = HOME / ".venv"
NOTE = VENV / "reprise-setup.json"
LOCK = HOME / "requirements.lock"
PROJECT = HOME / "pyproject.toml"
PIP = "pip>=25.1"  # older ones fail on constraints for packages that are asked for with extras


def paper_extras(path: Path) -> set[str]:
    """Extras in a paper's YAML, `extras: [a, b]` or a block list, read without a YAML library."""
    text = path.read_text(encoding="utf-8")
    if flow := re.search(r"^extras:\s*\[([^\]]*)\]", text, re.MULTILINE):
        names = flow.group(1).split(",")
    elif block := re.search(r"^extras:[ \t]*(?:#.*)?\n((?:[ \t]*-[ \t]*\S+.*\n?)+)", text, re.MULTILINE):
        names = [line.split("#")[0].strip().lstrip("-") for line in block.group(1).splitlines()]
    else:
        names = []
    return {name.strip().strip("'\"") for name in names} - {""}


def python_version(python: Path) -> str | None:
    """`3.11.7` for a working interpreter, None for a missing or broken one."""
    if python == Path(sys.executable):
        return sys.version.split()[0]
    try:
        code = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
        return subprocess.run(
            [python, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def state(version: str, project: dict) -> str:
    """Hash of all that decides what an installation holds, the extras aside; the linters' settings are not in it."""
    tool = project["tool"]
    decides = [
        project["build-system"],
        project["project"],
        tool["reprise"],
        tool["setuptools"],
        version,
        str(HOME),
    ]
    lock = LOCK.read_text() if LOCK.exists() else ""
    return hashlib.sha256(json.dumps([*decides, lock]).encode()).hexdigest()


def read_note() -> dict:
    """What the last finished installation wrote; empty where there is none."""
    try:
        return json.loads(NOTE.read_text())
    except (OSError, ValueError):
        return {}


def run(*command: str | Path) -> None:
    """Run a command quietly; show what it said and stop if it fails."""
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout.rstrip()}\nsetup: failed: {' '.join(str(part) for part in command)}")


def create(python: Path) -> None:
    """An empty environment with pip in it, also where the system's Python comes without ensurepip."""
    if VENV.exists():
        shutil.rmtree(VENV)
    if subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True).returncode == 0:
        run(sys.executable, "-m", "venv", VENV)
        run(python, "-m", "pip", "install", "--quiet", "--upgrade", PIP)
    else:
        run(sys.executable, "-m", "venv", "--without-pip", VENV)
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", PIP)


def install(python: Path, extras: set[str], known: dict) -> None:
    """One `pip install` against the lock; TORCH_INDEX_URL picks another build of PyTorch first."""
    target = f"{HOME}[{','.join(sorted(extras))}]" if extras else str(HOME)
    pins = ["-c", str(LOCK)] if LOCK.exists() else []
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    if index := os.environ.get("TORCH_INDEX_URL"):
        run(*pip, "torch", "--index-url", index, *pins)
    run(*pip, "--editable", target, *pins)
    bare = {name for extra in extras for name in known["no-deps"].get(extra, [])}
    if bare:
        run(*pip, "--no-deps", *sorted(bare), *pins)


def names(group: str, python: Path | None) -> set[str]:
    """Options of a configuration group, those of plug-ins among them if there is a Python to find them."""
    roots = [HOME / "conf", *map(Path, filter(None, os.environ.get("REPRISE_CONF", "").split(os.pathsep)))]
    found = {
        path.relative_to(root / group).with_suffix("").as_posix()
        for root in roots
        for path in (root / group).rglob("*.yaml")
    }
    if python is not None:
        code = f"from runners import places; print(*places.options({group!r}), sep='\\n')"
        done = subprocess.run([python, "-c", code], cwd=HOME, capture_output=True, text=True)
        found |= set(done.stdout.split("\n")) - {""}
    return found


def refuse(what: str, name: str, known: set[str]) -> None:
    """Say that there is no such paper or kind, and stop."""
    near = difflib.get_close_matches(name, sorted(known), 3, 0.4)
    print(f"no {what} {name!r}" + (f"; near: {', '.join(near)}" if near else ""), file=sys.stderr)
    sys.exit(2)


def main() -> None:
    """Parse the command line, then install what is missing."""
    parser = argparse.ArgumentParser(
        prog="scripts/setup", description="Create .venv and install the project, once."
    )
    parser.add_argument("extras", nargs="*", help="extras of pyproject.toml, e.g. llm dev all")
    parser.add_argument(
        "--paper", action="append", default=[], metavar="NAME", help="the extras this paper names"
    )
    parser.add_argument("--papers", action="store_true", help="the extras that any paper names")
    parser.add_argument("--kind", help="a kind of methods that there must be")
    args = parser.parse_args()

    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    extras = set(args.extras)
    papers = {path.stem: path for path in sorted((HOME / "conf" / "paper").glob("*.yaml"))}
    for name in papers if args.papers else [name for name in args.paper if name in papers]:
        extras |= paper_extras(papers[name])
    unknown = extras - set(project["project"]["optional-dependencies"])
    if unknown:
        sys.exit(f"setup: pyproject.toml has no extra {', '.join(sorted(unknown))}")

    python = VENV / "bin" / "python"
    version = python_version(python)
    note = read_note()
    fresh = version is not None and note.get("state") == state(version, project)
    if fresh and extras <= set(note["extras"]):
        return
    able = python if version else None  # no minutes of installing for a misspelt name
    for name in args.paper:
        if name not in papers and name not in (known := names("paper", able)):
            refuse("paper", name, known)
    if args.kind is not None:
        kinds = {name.partition("/")[0] for name in names("method", able) if "/" in name}
        if not args.kind:
            print(f"which kind? make compare kind=<one of {', '.join(sorted(kinds))}>", file=sys.stderr)
            sys.exit(2)
        if args.kind not in kinds:
            refuse("kind", args.kind, kinds)

    with open(HOME / ".venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        version, note = python_version(python), read_note()  # another process may have installed meanwhile
        if version is None:
            create(python)
            version, note = python_version(python), {}
        if note.get("state") == state(version, project) and extras <= set(note["extras"]):
            return
        extras |= set(note.get("extras", []))
        named = f" with {', '.join(sorted(extras))}" if extras else ""
        print(f"setup: installing into .venv{named} (once, some minutes) ...", flush=True)
        start = time.monotonic()
        install(python, extras, project["tool"]["reprise"])
        temporary = NOTE.with_suffix(".tmp")
        temporary.write_text(json.dumps({"state": state(version, project), "extras": sorted(extras)}))
        os.replace(temporary, NOTE)
        print(f"setup: done in {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
