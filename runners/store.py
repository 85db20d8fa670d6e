"""The store: one folder per run, found by id, read back as one tidy DataFrame at every moment.

``outputs/<kind>/<method>/<task>/<id>/`` holds ``config.yaml``, ``metrics.jsonl`` (flushed as the run goes),
``rows.jsonl`` (tables of replicates), and ``result.json``, written last and atomically: its presence *is* "done"
(or "diverged", which is a result too). A run that did not get there leaves ``failure.json`` instead.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners import identity

if TYPE_CHECKING:
    import pandas as pd

Config = dict[str, Any]
FINAL = ("done", "diverged")
MACHINE = ("device", "dtype", "ranks")
TABLES = ("metrics.jsonl", "rows.jsonl")
RESULT_KEYS = {
    "id",
    "status",
    "config",
    "summary",
    "fingerprint",
    "needs",
    "sizes",
    "wall_seconds",
    "provenance",
}


@dataclass
class Hit:
    """What the store knows of a run."""

    state: str  # finished | stale | missing
    result: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)


def write_atomic(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new one, never a part."""
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        spare.write_text(text, encoding="utf-8")
        os.replace(spare, path)
    except BaseException:
        spare.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Build much that stays without Python's search for circles in it, a third of the time for 100,000 runs."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Store:
    """Runs under one root."""

    def __init__(self, root: Path):
        self.root = Path(root)

    def folder(self, config: Config, run_id: str | None = None) -> Path:
        """Folder of a run."""
        return self.root / identity.folder(config, run_id or identity.run_id(config))

    def find(self, run_id: str) -> Path | None:
        """Folder of a run known by its id alone."""
        return next((path for path in self.root.glob(f"*/*/*/{run_id}") if path.is_dir()), None)

    def look(
        self, config: Config, run_id: str, fingerprint: str | None, *, stale: str = "rerun", folder: str = ""
    ) -> Hit:
        """Whether a run is finished. A stored config that differs from the asked one is reported and re-run.

        ``folder`` is the run's folder under the root, where it is known already.
        """
        folder = f"{self.root}/{folder or identity.folder(config, run_id)}"
        try:
            result = _load(f"{folder}/result.json")
        except FileNotFoundError:
            return Hit("missing")
        except (ValueError, OSError) as error:
            return Hit("missing", problems=[f"{folder}/result.json is not readable ({error}): run again"])
        if not _is_ours(result):
            return Hit("missing", problems=[f"{folder}/result.json is not a result of ours: run again"])
        asked = identity.canonical(config)
        if result["config"] != asked and identity.digest(result["config"]) != identity.digest(asked):
            return Hit("missing", problems=[f"{folder} holds another config under the same id: run again"])
        if result["sizes"] != sizes(folder):
            return Hit("missing", problems=[f"{folder}: its tables are not as the run left them: run again"])
        if fingerprint and (result["fingerprint"] != fingerprint or result["needs"] != self.needs(config)):
            if stale == "keep":
                return Hit("finished", result | {"stale": True})
            return Hit("stale", result)
        return Hit("finished", result)

    def needs(self, config: Config) -> dict[str, str]:
        """Fingerprints of the finished runs that a config's task takes ("" where one has no result)."""
        found = {}
        for node in config["task"].values():
            if isinstance(node, dict) and "_run_" in node:
                try:
                    found[node["_run_"]] = str(
                        _load(self.root / node["folder"] / "result.json")["fingerprint"]
                    )
                except (OSError, ValueError, KeyError):
                    found[node["_run_"]] = ""
        return found

    def failure(self, config: Config, run_id: str) -> dict[str, Any] | None:
        """Record of a run's last attempt that failed, timed out or was interrupted."""
        try:
            record = _load(self.folder(config, run_id) / "failure.json")
        except (OSError, ValueError):
            return None
        return record if {"status", "error"} <= set(record) else None

    def record_failure(
        self, config: Config, run_id: str, status: str, error: str, detail: str = "", *, refused: bool = False
    ) -> None:
        """Write ``failure.json``, for a run that its own process could not record (killed, timed out) too."""
        folder = self.folder(config, run_id)
        folder.mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {"id": run_id, "status": status, "error": error, "traceback": detail}
        if refused:
            record["refused"] = True
        write_atomic(folder / "failure.json", json.dumps(record, indent=1))

    def results(self) -> Iterable[dict[str, Any]]:
        """Every finished run, in order of its folder; torn and foreign files are passed over."""
        for path in sorted(self.root.glob("*/*/*/*/result.json")):
            try:
                result = _load(path)
            except (ValueError, OSError):
                continue
            if _is_ours(result):
                yield result | {"folder": str(path.parent)}

    def frame(self, results: Iterable[dict[str, Any]] | None = None) -> pd.DataFrame:
        """One row per finished run: method, task, seed, status, cost, config leaves that vary, summary values."""
        return frame_of(self.results() if results is None else results)


def frame_of(results: Iterable[dict[str, Any]], always: Iterable[str] = ()) -> pd.DataFrame:
    """Tidy frame of run records (see :meth:`Store.frame`); ``always`` names config leaves kept even if constant."""
    import pandas as pd

    from runners.compose import leaves

    records = list(results)
    flats: dict[tuple[int, int], dict[str, Any]] = {}  # runs share their configs' parts, mostly
    own: list[dict[str, Any]] = []
    for record in records:
        config = record["config"]
        parts = id(config["method"]), id(config["task"])
        if parts not in flats:
            flats[parts] = leaves({key: config[key] for key in ("method", "task")})
        own.append(flats[parts])
    seen: dict[str, list[Any]] = {}
    for flat in flats.values():
        for key, value in flat.items():
            if value not in seen.setdefault(key, [value]):
                seen[key].append(value)
    everywhere = {key for key in seen if all(key in flat for flat in flats.values())}
    machine = {key: [record["config"].get(key) for record in records] for key in MACHINE if records}
    present = {"seed", *seen, *machine}
    varying = dict.fromkeys(key for key in always if key in present)
    varying |= dict.fromkeys(key for key in seen if len(seen[key]) > 1 or key not in everywhere)
    varying |= dict.fromkeys(key for key, values in machine.items() if any(v != values[0] for v in values))
    columns: dict[str, list[Any]] = {
        "id": [record["id"] for record in records],
        "method": [identity.method_name(record["config"]) for record in records],
        "task": [record["config"]["task"]["_name_"] for record in records],
        "seed": [record["config"]["seed"] for record in records],
        "status": [record["status"] for record in records],
        "seconds": [record.get("wall_seconds") for record in records],
    }
    for key in varying:
        if key not in columns:
            values = machine.get(key) or [flat.get(key) for flat in own]
            columns[key] = [tuple(value) if isinstance(value, list) else value for value in values]
    summaries = [record.get("summary", {}) for record in records]
    for key in dict.fromkeys(key for summary in summaries for key in summary):
        columns.setdefault(key, [summary.get(key, math.nan) for summary in summaries])
    # Text stays Python's own: what pandas makes of it by itself takes twenty times as long to walk through.
    texts = {key for key, values in columns.items() if all(isinstance(value, str) for value in values)}
    return pd.DataFrame(
        {key: pd.Series(columns[key], dtype=object if key in texts else None) for key in columns}
    )


def read_lines(path: Path | str) -> list[dict[str, Any]]:
    """Lines of a JSON-lines file; a torn last line (a killed run's) is left out."""
    try:
        text = _content(path).decode()
    except FileNotFoundError:
        return []
    if text.endswith("\n"):  # every line is whole: all are read at once
        with contextlib.suppress(ValueError):
            whole: list[dict[str, Any]] = json.loads(f"[{text[:-1].replace(chr(10), ',')}]")
            return whole
    records: list[dict[str, Any]] = []
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except ValueError:
            if index != len(lines) - 1:
                raise ValueError(f"{path}:{index + 1}: not JSON") from None
    return records


def curve(folder: Path | str, result: dict[str, Any] | None = None) -> pd.DataFrame:
    """A run's metrics over steps; ``attrs`` carry its config, summary and status."""
    import pandas as pd

    frame = pd.DataFrame(read_lines(f"{folder}/metrics.jsonl"))
    if result is not None:
        frame.attrs["config"] = result["config"]
        frame.attrs["summary"] = result.get("summary", {})
        frame.attrs["status"] = result["status"]
    return frame


def tables(folder: Path | str, unit: str) -> pd.DataFrame:
    """Rows that a run recorded for one unit of replication (column ``i``: the replicate)."""
    import pandas as pd

    parts = [
        pd.DataFrame(record["columns"])
        for record in read_lines(f"{folder}/rows.jsonl")
        if record["unit"] == unit
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def rows_frame(runs: pd.DataFrame, folder_of: Callable[[str], Path | str], unit: str) -> pd.DataFrame:
    """Rows of every run of a frame, with the run's columns beside them (the rows' own win on a clash)."""
    import pandas as pd

    parts = []
    for run in runs.to_dict("records"):
        part = tables(folder_of(run["id"]), unit)
        if len(part):
            for key, value in run.items():
                if key not in part:
                    part[key] = [value] * len(part)
            parts.append(part)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*runs.columns, "i"])


def sizes(folder: Path | str) -> dict[str, int]:
    """Bytes of a run's tables: a finished run whose tables have others was torn by what came after it."""
    found = {}
    for name in TABLES:
        try:
            found[name] = os.stat(f"{folder}/{name}").st_size
        except OSError:  # (contextlib.suppress takes as long as the call)
            continue
    return found


def _content(path: Path | str) -> bytes:
    """A file's bytes in four system calls where it is small (``open`` takes twice as many)."""
    file = os.open(path, os.O_RDONLY)
    try:
        content = part = os.read(file, 2**16)
        while part:
            part = os.read(file, 2**20)
            content += part
    finally:
        os.close(file)
    return content


def _is_ours(result: dict[str, Any]) -> bool:
    return result.get("status") in FINAL and set(result) >= RESULT_KEYS


def _load(path: Path | str) -> dict[str, Any]:
    record = json.loads(_content(path))
    if not isinstance(record, dict):
        raise ValueError("not a mapping")
    return record
