"""What a run may ask of the machine (``resources`` of a task's YAML), checked before a launcher obeys it."""

from __future__ import annotations

from typing import Any

from runners.errors import ConfigError, nearest

# name -> (its type, the least value, what a message calls it)
KEYS: dict[str, tuple[type | tuple[type, ...], float, str]] = {
    "ranks": (int, 1, "a whole number of at least 1"),
    "gpus": (int, 0, "a whole number of at least 0"),
    "memory_gb": ((int, float), 0, "a number of at least 0"),
    "hours": ((int, float), 0, "a number of at least 0"),
    "restarts": (int, 0, "a whole number of at least 0"),
    "exclusive": (bool, 0, "true or false"),
}


def check(resources: Any, where: str) -> None:
    """Raise ConfigError for an unknown resource or a value that it cannot have; null stands for the default."""
    if resources is None:
        return
    if not isinstance(resources, dict):
        raise ConfigError(f"{where}: expected a mapping, found {resources!r}")
    for key, value in resources.items():
        if key not in KEYS:
            raise ConfigError(f"{where}: unknown key '{key}'{nearest(str(key), KEYS)}")
        kind, least, words = KEYS[key]
        fits = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        if value is not None and not (fits and value >= least):
            raise ConfigError(f"{where}.{key}={value!r}: expected {words}")
