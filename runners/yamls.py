"""YAML as Hydra reads it (``1e-3`` is a number, a key stands once), without importing Hydra."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from runners.errors import ConfigError


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    pass


_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
        |\.[0-9_]+(?:[eE][-+]?[0-9]+)?
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
    re.X,
)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes what the loader reads back: the text ``1e-3`` in quotes."""

    def ignore_aliases(self, _: Any) -> bool:
        """A tree that stands twice is written twice."""
        return True


for _class in (_Loader, _Dumper):
    _class.yaml_implicit_resolvers = {  # a date is a text, as in Hydra
        first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
        for first, known in _class.yaml_implicit_resolvers.items()
    }
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def _join_ranges(node: yaml.MappingNode) -> None:
    """Inside ``{...}`` YAML cuts ``range(100, 105)`` at its comma; put it together again."""
    joined: list[Any] = []
    for key, value in node.value:
        before = joined[-1][1] if joined else None
        opened = isinstance(before, yaml.ScalarNode) and re.fullmatch(r"range\([-\d\s,]*", before.value)
        if (
            opened
            and isinstance(key, yaml.ScalarNode)
            and re.fullmatch(r"-?\d+\)?", key.value)
            and not value.value
        ):
            joined[-1][1].value += f", {key.value}"
        else:
            joined.append((key, value))
    node.value = joined


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    _join_ranges(node)
    keys: list[Any] = []
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key, line = loader.construct_object(key_node, deep=True), key_node.start_mark.line + 1
        if not isinstance(key, str | int | float | None):
            raise ConfigError(f"line {line}: a key must be a name, not {key!r}")
        if key in keys:
            raise ConfigError(f"line {line}: the key '{key}' stands twice")
        keys.append(key)
    loader.flatten_mapping(node)
    return {
        loader.construct_object(k, deep=True): loader.construct_object(v, deep=True) for k, v in node.value
    }


_PLAIN = ("null", "bool", "int", "float", "str", "seq")  # what JSON has too: no sets, dates, bytes
_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in _Loader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in _PLAIN
}
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load(path: Path) -> Any:
    """Read a YAML file; ConfigError names the file and the line of what is wrong."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name}: not a text in UTF-8 (byte {error.start})") from error


def dump(tree: Any) -> str:
    """YAML text of a plain tree, keys in their order; reads back as the same tree."""
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def parse(text: str) -> Any:
    """Read YAML text."""
    try:
        return yaml.load(text, Loader=_Loader)  # a subclass of the safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(f"{at}not valid YAML: {getattr(error, 'problem', error)}") from error
