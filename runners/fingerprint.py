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
from pathlib import Path
from typing import Any

from runners import places

_parsed: dict[Path, tuple[tuple[int, int], str, tuple[str, ...]]] = {}


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
    """Computes fingerprints, each set of targets once; make a new one where files may have changed."""

    def __init__(self) -> None:
        self._by_targets: dict[frozenset[str], str] = {}
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
            for name, (_, tree_hash) in sorted(self.modules(key).items()):
                digest.update(f"{name} {tree_hash}\n".encode())
            self._by_targets[key] = digest.hexdigest()[:16]
        return self._by_targets[key]

    def modules(self, names: Iterable[str]) -> dict[str, tuple[Path, str]]:
        """Modules of ours reached from dotted names: {module: (file, hash of its syntax tree)}."""
        waiting, reached = list(names), {}
        while waiting:
            parts = waiting.pop().split(".")
            for length in range(1, len(parts) + 1):  # a package's __init__ runs before its modules
                module = ".".join(parts[:length])
                file = self._file(module)
                if file is None:
                    break
                if module not in reached:
                    tree_hash, imports = _parse(file, module)
                    reached[module] = (file, tree_hash)
                    waiting.extend(imports)
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


def _parse(file: Path, module: str) -> tuple[str, tuple[str, ...]]:
    stat = file.stat()
    stamp = (stat.st_mtime_ns, stat.st_size)
    cached = _parsed.get(file)
    if cached is None or cached[0] != stamp:
        tree = ast.parse(file.read_bytes(), filename=str(file))
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        imports = tuple(sorted(_imports(tree, package)))
        cached = (stamp, hashlib.sha256(ast.dump(_bare(tree)).encode()).hexdigest(), imports)
        _parsed[file] = cached
    return cached[1], cached[2]


def _bare(tree: ast.Module) -> ast.Module:
    """Drop docstrings (comments are not in the tree)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:] or [ast.Pass()]
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
