"""Artifacts: expensive preparations (a trained base model, a pool of answers), built once and shared by runs.

An artifact is a ``_target_`` node marked ``_artifact_: true``; the target is ``build(out: Path, **args) -> None``
and writes files into ``out``. It has an id of its own (a hash of its node), the fingerprint of its code, a lock
and provenance; small ones may be published under ``results/artifacts/``.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import SoftFileLease

from runners import places, provenance
from runners.build import Artifact, build
from runners.fingerprint import Fingerprinter
from runners.identity import digest
from runners.lease import LEASE_SECONDS
from runners.store import write_atomic


class ArtifactStore:
    """Artifacts under ``<outputs>/artifacts``, with the published ones as a second source."""

    def __init__(self, root: Path, code: Fingerprinter | None = None):
        self.root = root / "artifacts"
        self.code = code or Fingerprinter()
        self._ready: dict[str, tuple[Path, str]] = {}

    def path(self, node: dict[str, Any]) -> Path:
        """Where an artifact's folder is (or will be): ``<target's last names>/<id>``."""
        name = ".".join(node["_target_"].split(".")[-2:])
        return self.root / name / digest(node)

    def failure_log(self, node: dict[str, Any]) -> Path:
        """Where the traceback of an artifact's last attempt is, if that failed."""
        return self.path(node).with_suffix(".failure.txt")

    def find(self, node: dict[str, Any]) -> tuple[Path, str] | None:
        """The finished folder and its content's checksum, or None if it must be built (again)."""
        folder = self.path(node)
        published = places.results() / "artifacts" / folder.parent.name / folder.name
        fingerprint = self.code.of(node)
        for candidate in (folder, published):
            try:
                record = json.loads((candidate / "artifact.json").read_bytes())
            except (OSError, ValueError):
                continue
            if record.get("fingerprint") == fingerprint and record.get("node") == node:
                return candidate, record["content"]
        return None

    def get(self, artifact: Artifact) -> tuple[Path, str]:
        """Folder and checksum of an artifact; builds it if needed, one process at a time."""
        key = digest(artifact.node)
        if key not in self._ready:
            self._ready[key] = self.find(artifact.node) or self._build_locked(artifact.node)
        return self._ready[key]

    def _build_locked(self, node: dict[str, Any]) -> tuple[Path, str]:
        folder = self.path(node)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with SoftFileLease(folder.with_suffix(".lock"), lease_duration=LEASE_SECONDS):
            return self.find(node) or self._build(node, folder)

    def _build(self, node: dict[str, Any], folder: Path) -> tuple[Path, str]:
        spare = folder.with_suffix(".building")
        shutil.rmtree(spare, ignore_errors=True)
        spare.mkdir(parents=True)
        plain = {key: value for key, value in node.items() if key != "_artifact_"} | {"_partial_": True}
        with provenance.seeded(int(node.get("seed") or 0), fork=True), provenance.Meter() as meter:
            factory = build(plain, node["_target_"], resolve_run=_no_runs)
            keywords = {key: self._finished(value) for key, value in factory.keywords.items()}
            factory.func(out=spare, **keywords)
        content = _checksum(spare)
        record = {
            "node": node,
            "fingerprint": self.code.of(node) if self.code.unchanged(node) else "",
            "content": content,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "provenance": provenance.describe(),
            **meter.cost,
        }
        write_atomic(spare / "artifact.json", json.dumps(record, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        spare.rename(folder)
        return folder, content

    def _finished(self, value: Any) -> Any:
        return self.get(value)[0] if isinstance(value, Artifact) else value


def nodes(config: Any) -> Iterator[dict[str, Any]]:
    """Every artifact node of a config (an artifact's own inputs first)."""
    values = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    for value in values:
        yield from nodes(value)
    if isinstance(config, dict) and config.get("_artifact_"):
        yield config


def _no_runs(node: dict[str, Any]) -> Any:
    raise TypeError(f"an artifact cannot take the finished run {node['_run_']}: give it to the task")


def _checksum(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(path.relative_to(folder).as_posix().encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
