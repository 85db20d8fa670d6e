"""Imports every package that pyproject.toml asks for, in one process, and names those that fail.

.venv/bin/python scripts/check_imports.py [extra ...]      default: the base and all extras
"""

import importlib
import os
import re
import sys
import time
import tomllib
import traceback
from importlib.metadata import packages_distributions
from pathlib import Path

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Return the number of packages that do not import."""
    project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"] | {"base": project["project"]["dependencies"]}
    bare = project["tool"]["reprise"]["no-deps"]
    chosen = sys.argv[1:] or list(extras)
    asked = [name for extra in chosen for name in extras[extra] + bare.get(extra, [])]
    wanted = {canonical(re.split(r"[\[<>=!~; ]", name)[0]) for name in asked} - {"reprise"}
    modules: dict[str, list[str]] = {}
    for module, distributions in packages_distributions().items():
        for distribution in distributions:
            modules.setdefault(canonical(distribution), []).append(module)
    failed = 0
    for distribution in sorted(wanted):
        names = [
            name
            for name in modules.get(distribution, [])
            if not re.search(r"^_|tests?$|^docs$|-|stubs$", name)
        ]
        if distribution not in modules:
            print(f"{distribution}: not installed")
            failed += 1
        for name in names:
            start = time.monotonic()
            try:
                importlib.import_module(name)
                print(f"{distribution}: {name} ({time.monotonic() - start:.1f} s)")
            except Exception:
                traceback.print_exc()
                print(f"{distribution}: {name} DOES NOT IMPORT")
                failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
