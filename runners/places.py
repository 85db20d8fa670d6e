"""Where things lie: the configuration folders (ours and plug-ins'), the outputs, the results."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
CORE_PACKAGES = ("methods", "tasks")


def outputs() -> Path:
    """The store's root: ``$REPRISE_OUTPUTS``, else ``outputs/`` beside the project."""
    return Path(os.environ.get("REPRISE_OUTPUTS") or HOME / "outputs")


def results() -> Path:
    """Published results: ``$REPRISE_RESULTS``, else ``results/`` beside the project."""
    return Path(os.environ.get("REPRISE_RESULTS") or HOME / "results")


def cache() -> Path:
    """Where fetched data goes: ``$REPRISE_CACHE``, else the user's cache folder for ``reprise``."""
    import platformdirs

    return Path(os.environ.get("REPRISE_CACHE") or platformdirs.user_cache_dir("reprise")).absolute()


@lru_cache(maxsize=1)
def plugin_packages() -> tuple[str, ...]:
    """Packages that add methods and tasks from outside (entry point group ``reprise.plugins``)."""
    import importlib.metadata  # a third of the start-up time of a command, so only where it is needed

    return tuple(sorted({point.value for point in importlib.metadata.entry_points(group="reprise.plugins")}))


@lru_cache(maxsize=1)
def conf_roots() -> tuple[Path, ...]:
    """Configuration folders, ours first: ``conf/``, each plug-in package's ``conf/``, ``$REPRISE_CONF``."""
    import importlib.util

    roots = [HOME / "conf"]
    for package in plugin_packages():
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations or []) if spec else []:
            roots.append(Path(location) / "conf")
    roots += [Path(part) for part in os.environ.get("REPRISE_CONF", "").split(os.pathsep) if part]
    return tuple(root.resolve() for root in roots if root.is_dir())


def our_packages() -> tuple[str, ...]:
    """Top-level packages whose source is part of a run's fingerprint."""
    return (*CORE_PACKAGES, *sorted({name.split(".")[0] for name in plugin_packages()}))


@lru_cache(maxsize=64)
def options(group: str) -> tuple[str, ...]:
    """Names of a configuration group over all roots, e.g. ``options("method")``."""
    found = set()
    for root in conf_roots():
        folder = root / group
        if folder.is_dir():
            found |= {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")}
    return tuple(sorted(found))


def option_file(group: str, name: str) -> Path | None:
    """The YAML file of one option, or None."""
    for root in conf_roots():
        path = root / group / f"{name}.yaml"
        if path.is_file():
            return path
    return None
