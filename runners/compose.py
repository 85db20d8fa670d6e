"""Composition: Hydra once per choice of method, task and groups; then leaves are set on plain dictionaries.

A run's config is the plain dictionary ``{method, task, seed, device, dtype, ranks}``. Nodes that Hydra chose
from a group carry the option's name in ``_name_``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from runners import places, resources
from runners.errors import ConfigError, nearest
from runners.interpolation import resolve_references
from runners.pins import pin

Config = dict[str, Any]
RUN_KEYS = ("method", "task", "seed", "device", "dtype", "ranks")
DTYPES = ("float16", "bfloat16", "float32", "float64")


def check_option(group: str, name: Any, where: str = "") -> str:
    """Return ``name`` if ``group`` has it, else raise ConfigError with the nearest one."""
    at = f"{where}: " if where else ""
    known = places.options(group)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{at}{group}={name!r}: expected the name of a {group}")
    if name not in known:
        if not known:
            raise ConfigError(f"{at}{group}={name}: the group '{group}' has no options")
        raise ConfigError(f"{at}unknown {group} '{name}'{nearest(name, known)}")
    return name


@cache
def _hydra(choices: tuple[tuple[str, str], ...]) -> tuple[Config, dict[str, tuple[str, str]]]:
    """Compose ``conf/config.yaml`` with group choices; return the unresolved tree and {path: (group, option)}."""
    import yaml
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    overrides = [f"{key}={value}" for key, value in choices]
    main, *others = places.conf_roots()
    if others:
        overrides.append("hydra.searchpath=[" + ",".join(f"file://{root}" for root in others) + "]")
    outer = GlobalHydra.instance().hydra  # hydra.main's, where this is called inside it
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(main), version_base="1.3"):
            tree = compose("config", overrides=overrides, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        chosen_text = " ".join(f"{key}={value}" for key, value in choices)
        reason = str(error).partition("Config search path")[0]
        raise ConfigError(f"{chosen_text}: {' '.join(reason.split())}") from error
    finally:
        GlobalHydra.instance().hydra = outer
    chosen = {}
    for key, option in tree.hydra.runtime.choices.items():
        group, _, path = key.partition("@")
        if option is not None and not group.startswith("hydra"):
            chosen[path or group.replace("/", ".")] = (group, str(option))
    config: Any = OmegaConf.to_container(tree, resolve=False)
    config.pop("hydra")
    for path, (_, option) in chosen.items():
        node = walk(config, path)
        if isinstance(node, dict):
            node["_name_"] = option
    return config, chosen


def walk(config: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """Return the node at a dotted path, ``default`` where there is none."""
    node: Any = config
    for key in path.split("."):
        if isinstance(node, Mapping) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            return default
    return node


def plain_copy(node: Any) -> Any:
    """A copy of a tree of plain mappings, lists and scalars (several times faster than ``copy.deepcopy``)."""
    if isinstance(node, dict):
        return {key: plain_copy(value) for key, value in node.items()}
    return [plain_copy(value) for value in node] if isinstance(node, list) else node


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten a tree to {dotted path: leaf}; chosen groups appear as {path: option name}; lists are leaves."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        path = f"{prefix}{key}"
        if str(key).startswith("_") and str(key).endswith("_"):
            continue
        if isinstance(value, Mapping):
            if "_name_" in value:
                flat[path] = value["_name_"]
            if "_run_" not in value:
                flat.update(leaves(value, f"{path}."))
        else:
            flat[path] = value
    return flat


class Base:
    """A composed method × task, onto which leaves are set. Cheap to copy, never changed."""

    def __init__(self, choices: dict[str, str]):
        self.choices = dict(choices)
        self.chosen: dict[str, tuple[str, str]] = {}
        tree: Config = {}
        for part in (
            "method",
            "task",
        ):  # each by itself: as many compositions as methods and tasks, not pairs
            own = {k: v for k, v in choices.items() if (k.partition("@")[2] or k).partition(".")[0] == part}
            composed, chosen = _hydra(tuple(sorted(own.items())))
            tree |= composed
            self.chosen |= chosen
        self.tree = {key: tree[key] for key in RUN_KEYS if key in tree}
        for part in {"method", "task"} & set(choices):
            _check_form(self.tree[part], part, self.choices[part])

    def group_at(self, path: str) -> str | None:
        """The group whose option stands at ``path`` (``data`` at ``task.data``), or None."""
        return self.chosen[path][0] if path in self.chosen else None


def _check_form(node: Any, part: str, name: str) -> None:
    """A method or task names a class or function; a method may instead name one for each slot."""
    if not isinstance(node, dict):
        raise ConfigError(f"{part} {name}: expected a mapping, found {node!r}")
    target = node.get("_target_")
    if target is None:
        slots = [value for value in node.values() if isinstance(value, dict) and "_target_" in value]
        if part == "task" or not slots:
            raise ConfigError(f"{part} {name}: no _target_ (the dotted name of a class or function)")
    elif not isinstance(target, str) or "." not in target:
        raise ConfigError(f"{part} {name}: _target_ {target!r} is no dotted name")


@cache
def _base(choices: tuple[tuple[str, str], ...]) -> Base:
    return Base(dict(choices))


def base(choices: dict[str, str]) -> Base:
    """Cached composition of group choices, e.g. ``{"method": "zeroth_order/radazo", "task": ...}`` or one of both."""
    return _base(tuple(sorted(choices.items())))


Triple = tuple[str, Any, str]


def compose_run(
    method: str | list[str],
    task: str,
    triples: Callable[[str], list[Triple]],
    *,
    where: str = "",
    ranks: int | None = None,
) -> Config:
    """Compose one run's resolved config.

    ``method`` is a name, or a list of names for a panel. ``triples(method name)`` gives (path, value, place) leaves
    to set, later ones win; a text set onto a group's node picks another option of that group; ``+path`` adds a key.
    ``ranks`` is what a launcher gives to tasks that can be distributed (those with ``resources.ranks``).
    Raises ConfigError naming the place, the key and the nearest valid name.
    """
    members = method if isinstance(method, list) else [method]
    at = f"{where}: " if where else ""
    if not members:
        raise ConfigError(f"{at}a panel needs at least one method")
    if len(set(members)) != len(members):
        raise ConfigError(f"{at}a panel names each method once: {members}")
    check_option("task", task, where)
    for name in members:
        check_option("method", name, where)
    configs = [_compose_one(name, task, triples(name), where) for name in members]
    config = configs[0]
    declared = (config["task"].get("resources") or {}).get("ranks")
    asked = any(path == "ranks" for path, _, _ in triples(members[0]))
    if declared is not None and not asked:
        config["ranks"] = int(declared) if ranks is None else ranks
    if not (isinstance(config["ranks"], int) and config["ranks"] >= 1):
        raise ConfigError(f"{at}ranks={config['ranks']!r}: expected a whole number of at least 1")
    for key in ("seed", "device", "dtype"):
        check_value(key, config[key], at)
    resources.check(config["task"].get("resources"), f"{at}task.resources")
    if any(other["task"] != config["task"] for other in configs[1:]):
        raise ConfigError(f"{at}the methods of a panel share one task: a setting changes it for some of them")
    if isinstance(method, list):
        config["method"] = {"_panel_": {c["method"]["_name_"]: c["method"] for c in configs}}
    return config


def check_value(key: str, value: Any, at: str = "") -> None:
    """Raise ConfigError where a run cannot have this seed, device or dtype; ``at`` names the place it is from."""
    if key == "device" and not (isinstance(value, str) and re.fullmatch(r"cpu|mps|cuda(:\d+)?", value)):
        near = nearest(str(value).lower().replace("gpu", "cuda"), ("cpu", "cuda", "cuda:0", "mps"))
        raise ConfigError(f"{at}device={value}: expected cpu, cuda, cuda:<number> or mps{near}")
    if key == "dtype" and value is not None and value not in DTYPES:
        raise ConfigError(
            f"{at}dtype={value}: expected one of {', '.join(DTYPES)}{nearest(str(value), DTYPES)}"
        )
    if key == "seed" and not (type(value) is int and value >= 0):
        raise ConfigError(f"{at}seed={value!r}: expected a whole number of at least 0")


def _compose_one(method: str, task: str, triples: list[Triple], where: str) -> Config:
    choices = {"method": method, "task": task}
    current = base(choices)
    for path, value, place in triples:  # group choices first: they change which leaves exist
        group = current.group_at(path)
        if group and path not in ("method", "task") and isinstance(value, str):
            check_option(group, value, place or where)
            choices[f"{group}@{path}"] = value
            current = base(choices)
    resolved = resolve(_with_leaves(current, triples, where), where)
    if any(map(_interpolated, triples)):
        # What an interpolation came to must be of its default's type too: set it as if it had been written out.
        final = [
            (triple[0], walk(resolved, triple[0].lstrip("+")), triple[2]) if _interpolated(triple) else triple
            for triple in triples
        ]
        resolved = resolve(_with_leaves(current, final, where), where)
    pin(resolved)
    return resolved


def _interpolated(triple: Triple) -> bool:
    return isinstance(triple[1], str) and "${" in triple[1]


def _with_leaves(current: Base, triples: list[Triple], where: str) -> Config:
    config: Config = plain_copy(current.tree)
    for path, value, place in triples:
        at = f"{place or where}: " if place or where else ""
        group = current.group_at(path)
        if group and path not in ("method", "task") and not isinstance(value, str | dict):
            check_option(group, value, place or where)
        if path.lstrip("+") in ("method.interface", "task.interface"):
            raise ConfigError(f"{at}'{path}' is for the YAML to say: methods and tasks pair by it")
        if path.startswith("task.resources."):  # any of them may be set, also one that the YAML does not name
            config["task"].setdefault("resources", {})
            path = f"+{path}"
        if not (group and isinstance(value, str)):
            set_leaf(config, path, value, place or where)
    return config


def set_leaf(config: Config, path: str, value: Any, where: str = "") -> None:
    """Set one leaf in place, checked: the key must exist and the value must be of its default's type."""
    at = f"{where}: " if where else ""
    add = path.startswith("+")
    path = path.lstrip("+")
    *parents, last = path.split(".")
    node: Any = config
    done: list[str] = []
    for key in parents:
        if isinstance(node, dict) and key not in node and add:
            node[key] = {}
        node = _child(node, key, done, config, path, at)
        done.append(key)
    if isinstance(node, list):
        _child(node, last, done, config, path, at)
        node[int(last)] = _typed(node[int(last)], value, path, at)
        return
    if not isinstance(node, dict) or (last not in node and not add) or last.startswith("_"):
        raise ConfigError(f"{at}{_unknown(config, path)}")
    node[last] = plain_copy(value) if last not in node else _typed(node[last], value, path, at)


def _child(node: Any, key: str, done: list[str], config: Config, path: str, at: str) -> Any:
    if isinstance(node, dict) and key in node and not key.startswith("_"):
        return node[key]
    if isinstance(node, list) and key.isdigit() and int(key) < len(node):
        return node[int(key)]
    raise ConfigError(f"{at}{_unknown(config, path)}")


def _unknown(config: Config, path: str) -> str:
    known = leaves(config)
    owner = walk(config, path.split(".")[0])
    name = owner.get("_name_") if isinstance(owner, dict) else None
    note = f" in {path.split('.')[0]} {name}" if name else ""
    return f"unknown key '{path}'{note}{nearest(path, known)}"


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    (int, "a whole number"),
    (float, "a number"),
    (str, "a text"),
    (list, "a list"),
    (dict, "a mapping"),
)


def _typed(default: Any, value: Any, path: str, at: str) -> Any:
    """Return ``value`` in the type of ``default``; raise ConfigError where it does not fit."""
    if default is None or (isinstance(default, str) and ("${" in default or default == "???")):
        return plain_copy(value)
    if default == {} and isinstance(value, Mapping):  # any keys, as launcher.extra has
        return plain_copy(dict(value))
    if isinstance(default, dict) and isinstance(value, Mapping):
        merged = default
        for key, item in value.items():
            set_leaf(merged, str(key), item, f"{at}{path}".rstrip(": "))
        return merged
    if isinstance(value, str) and "${" in value:
        return value
    if isinstance(default, str) and default[:1].isdigit() and type(value) in (int, float):
        return str(value)  # arithmetic as text ("0.001", "1/L"): a number is some too
    fits = isinstance(value, type(default)) and isinstance(value, bool) == isinstance(default, bool)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    whole = isinstance(default, int) and not isinstance(default, bool)
    if whole and isinstance(value, float) and value.is_integer():
        return int(value)
    if (
        isinstance(value, list)
        and isinstance(default, list)
        and default
        and all(type(item) is float for item in default)
    ):
        return [float(item) if type(item) is int else plain_copy(item) for item in value]
    if not fits:
        wanted = next(words for kind, words in _KINDS if isinstance(default, kind))
        raise ConfigError(f"{at}{path}={value!r}: expected {wanted}, like the default {default!r}")
    return plain_copy(value)


def resolve(config: Config, where: str = "") -> Config:
    """Resolve ``${...}`` interpolations (only if there are any: it is the slow part)."""
    if not _has_interpolation(config):
        _check_missing(config, where)
        return config
    quick = resolve_references(config)
    if quick is not None:
        _check_missing(quick, where)
        return quick
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved: Any = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    except OmegaConfBaseException as error:
        at = f"{where}: " if where else ""
        raise ConfigError(f"{at}{' '.join(str(error).split())}") from error
    _check_missing(resolved, where)
    return dict(resolved)


def _has_interpolation(node: Any) -> bool:
    if isinstance(node, str):
        return "${" in node
    if isinstance(node, dict):
        return any(map(_has_interpolation, node.values()))
    return isinstance(node, list) and any(map(_has_interpolation, node))


def _check_missing(config: Config, where: str) -> None:
    for path, value in leaves(config).items():
        if isinstance(value, str) and value == "???":
            raise ConfigError(
                f"{where + ': ' if where else ''}{path} is ??? (it has no default): give it a value"
            )
