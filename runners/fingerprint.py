"""Fingerprints: what code a run's numbers depend on.

A fingerprint hashes the syntax trees, without comments and docstrings, of every module of ours (methods, tasks,
plug-in packages) that is reached from any ``_target_`` of a config, directly or through imports. A changed
helper changes it; a changed comment does not.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners import places

_parsed: dict[Path, _Source] = {}


def targets(node: Any) -> set[str]:
    """Every ``_target_`` in a config, at any depth."""
    found: set[str] = set()
    if isinstance(node, dict):
        if isinstance(node.get("_target_"), str):
            found.add(node["_target_"])
        for value in node.values():
            found |= targets(value)
    elif isinstance(node, list):
        for value in node:
            found |= targets(value)
    return found


class Fingerprinter:
    """Fingerprints of the code as it is when first looked at; a new one sees what was edited since."""

    def __init__(self) -> None:
        self._by_targets: dict[frozenset[str], str] = {}
        self._reached: dict[frozenset[str], list[Path]] = {}
        self._seen: dict[Path, _Source] = {}
        self._files: dict[str, Path | None] = {}
        self._roots = {name: self._root(name) for name in places.our_packages()}

    @staticmethod
    def _root(package: str) -> Path | None:
        spec = importlib.util.find_spec(package)
        locations = list(spec.submodule_search_locations or []) if spec else []
        return Path(locations[0]) if locations else None

    def of(self, config: Any) -> str:
        """Fingerprint of a config (16 hexadecimal digits)."""
        key = frozenset(targets(config))
        if key not in self._by_targets:
            digest = hashlib.sha256()
            modules = self.modules(key)
            for name, (_, tree_hash) in sorted(modules.items()):
                digest.update(f"{name} {tree_hash}\n".encode())
            self._by_targets[key] = digest.hexdigest()[:16]
            self._reached[key] = [file for file, _ in modules.values()]
        return self._by_targets[key]

    def unchanged(self, config: Any) -> bool:
        """Whether no file behind a config's fingerprint has been touched since it was first looked at."""
        self.of(config)
        return all(
            _stamp(file) == self._seen[file].stamp for file in self._reached[frozenset(targets(config))]
        )

    def modules(self, names: Iterable[str]) -> dict[str, tuple[Path, str]]:
        """Modules of ours reached from dotted names: {module: (file, hash of its syntax tree)}."""
        waiting, reached = list(names), {}
        while waiting:
            parts = waiting.pop().split(".")
            for length in range(1, len(parts) + 1):  # a package's __init__ runs before its modules
                module = ".".join(parts[:length])
                file = self._file(module)
                if file is None:
                    if self._is_folder(module):  # a namespace package: no code of its own
                        continue
                    break
                if module not in reached:
                    source = self._seen.setdefault(file, _parse(file, module))
                    reached[module] = (file, source.tree_hash)
                    waiting.extend(source.imports)
        return reached

    def _file(self, module: str) -> Path | None:
        if module not in self._files:
            top, *rest = module.split(".")
            root = self._roots.get(top)
            found = None
            if root is not None:
                stem = root.joinpath(*rest)
                candidates = [stem / "__init__.py"] + ([stem.with_suffix(".py")] if rest else [])
                found = next((path for path in candidates if path.is_file()), None)
            self._files[module] = found
        return self._files[module]

    def _is_folder(self, module: str) -> bool:
        top, *rest = module.split(".")
        root = self._roots.get(top)
        return root is not None and root.joinpath(*rest).is_dir()


@dataclass(frozen=True)
class _Source:
    stamp: tuple[int, int] | None  # time of modification (ns) and size
    tree_hash: str
    imports: tuple[str, ...]


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size)


def _parse(file: Path, module: str) -> _Source:
    stamp = _stamp(file)
    cached = _parsed.get(file)
    if cached is None or cached.stamp != stamp:
        tree = ast.parse(file.read_bytes(), filename=str(file))
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        imports = tuple(sorted(_imports(tree, package)))
        cached = _Source(stamp, hashlib.sha256(ast.dump(_bare(tree)).encode()).hexdigest(), imports)
        _parsed[file] = cached
    return cached


def _bare(tree: ast.Module) -> ast.Module:
    """Drop docstrings (comments are not in the tree) and the bodies of Protocols, which compute nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.ClassDef) and any(
            ast.unparse(base).startswith("Protocol") for base in node.bases
        ):
            node.body = [ast.Pass()]
    return tree


def _imports(tree: ast.Module, package: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (base, node.module) if part)
            names.add(origin)
            names |= {f"{origin}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] in places.our_packages()}
