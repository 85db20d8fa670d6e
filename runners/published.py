"""What is published and what is planned, read for the pages: papers' YAML files beside their results.

Only small files are read (``verdicts.json``, tables of ``runs`` and ``tuning``); no pandas, so that ten thousand
runs are summed in a moment.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runners import yamls

VERDICTS = ("reproduced", "contradicted", "inconclusive", "shown", "not run")
SYMBOLS = dict(zip(VERDICTS, "✓✗?○–", strict=True))
JUDGED = VERDICTS[:3]
SCALES = ("paper", "laptop", "smoke")
SMOKE = "Scale smoke shows that everything runs; its numbers and verdicts are too small to mean anything."
STATUSES = ("done", "diverged", "failed", "timeout", "interrupted")


@dataclass
class Scale:
    """Results of one paper at one scale, from one folder."""

    name: str
    folder: Path
    verdicts: dict[str, Any]

    @property
    def figures(self) -> list[Path]:
        """Its drawn figures, by name."""
        return sorted((self.folder / "figures").glob("*.svg"))

    @property
    def provenance(self) -> dict[str, Any]:
        """Python, packages, hardware, costs."""
        return dict(self.verdicts.get("provenance") or {})

    @property
    def cpu_seconds(self) -> float | None:
        """CPU seconds of all its runs, else the wall seconds, else None."""
        value = self.provenance.get("cpu_seconds", self.verdicts.get("seconds"))
        return float(value) if isinstance(value, int | float) else None

    @property
    def data_files(self) -> list[Path]:
        """Files a reader may want to open."""
        tables = [
            f"{name}{suffix}" for name in ("runs", "curves", "tuning") for suffix in (".csv", ".parquet")
        ]
        names = ["verdicts.json", *tables]
        return [self.folder / name for name in names if (self.folder / name).is_file()]


@dataclass
class Statement:
    """A claim or a finding, with what was found at each scale."""

    id: str
    kind: str
    says: str
    spec: dict[str, Any]
    at: dict[str, dict[str, Any]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)

    @property
    def scale(self) -> str | None:
        """The largest scale that judged it, else the largest that shows it."""
        for wanted in (JUDGED, ("shown",)):
            for name in ordered(self.at):
                if self.at[name].get("verdict") in wanted:
                    return name
        return None

    @property
    def best(self) -> dict[str, Any]:
        """What was found at `scale` (or why nothing was)."""
        if self.scale:
            return self.at[self.scale]
        return next((self.at[name] for name in ordered(self.at)), {})

    @property
    def verdict(self) -> str:
        """Verdict at `scale`."""
        return known(self.best.get("verdict"))


@dataclass
class Paper:
    """One paper: its YAML and all of its results."""

    slug: str
    spec: dict[str, Any]
    scales: dict[str, Scale]
    claims: list[Statement]
    findings: list[Statement]

    @property
    def title(self) -> str:
        """Title, or the slug where there is none."""
        return str(self.spec.get("title") or self.slug)

    @property
    def kinds(self) -> list[str]:
        """Kinds of the tasks (and methods) it pairs."""
        found: Counter[str] = Counter()
        for experiment in (self.spec.get("experiments") or {}).values():
            grids = (experiment or {}).get("grid") or {}
            for grid in grids if isinstance(grids, list) else [grids]:
                for key in ("task", "method"):
                    found.update(name.split("/", 1)[0] for name in flat(grid.get(key)) if "/" in name)
        return list(found)

    @property
    def counts(self) -> Counter[str]:
        """Claims by verdict."""
        return Counter(claim.verdict for claim in self.claims)

    def judged(self, scale: str) -> int:
        """How many claims a scale judged."""
        return sum(claim.at.get(scale, {}).get("verdict") in JUDGED for claim in self.claims)

    @property
    def main(self) -> Scale | None:
        """The scale that judged most claims; the larger of equals."""
        return self.scales[max(self.scales, key=self.judged)] if self.scales else None

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds over all published scales."""
        return sum(scale.cpu_seconds or 0.0 for scale in self.scales.values())


def known(verdict: Any) -> str:
    """A verdict, or ``not run`` for anything that is none."""
    return verdict if verdict in VERDICTS else "not run"


def ordered(scales: Iterable[str]) -> list[str]:
    """Scale names, the largest first."""
    return sorted(scales, key=lambda name: (SCALES.index(name) if name in SCALES else len(SCALES), name))


def flat(value: Any) -> list[str]:
    """Strings in a value that may be nested lists."""
    if isinstance(value, list):
        return [text for part in value for text in flat(part)]
    return [] if value is None else [str(value)]


def read_papers(conf: Iterable[Path], results: Path) -> list[Paper]:
    """Every paper that has a YAML file or results, by slug.

    Args:
        conf: folders of paper YAML files; on equal names the first counts.
        results: folder of published results (``<slug>/<scale>/verdicts.json``); it may be missing.
    """
    files: dict[str, Path] = {}
    for folder in conf:
        for path in sorted(folder.glob("*.yaml")):
            files.setdefault(path.stem, path)
    slugs = set(files) | {path.parent.parent.name for path in results.glob("*/*/verdicts.json")}
    return [read_paper(slug, files.get(slug), results / slug) for slug in sorted(slugs)]


def read_paper(slug: str, file: Path | None, results: Path) -> Paper:
    """One paper with the results at every scale under ``results``."""
    spec = load_yaml(file) if file else {}
    scales = {}
    for path in sorted(results.glob("*/verdicts.json")):
        scale = read_scale(path.parent)
        if scale:
            scales[scale.name] = scale
    return assemble(slug, spec, {name: scales[name] for name in ordered(scales)})


def read_scale(folder: Path) -> Scale | None:
    """Results in one folder, or None where there are none (or they cannot be read)."""
    try:
        verdicts = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Scale(folder.name, folder, verdicts) if isinstance(verdicts, dict) else None


def assemble(slug: str, spec: dict[str, Any], scales: dict[str, Scale]) -> Paper:
    """Join a paper's YAML and its results, statement by statement; what was never run shows as such."""
    groups: dict[str, list[Statement]] = {}
    for kind, key in (("claim", "claims"), ("finding", "findings")):
        found: dict[str, Statement] = {}
        for name, entry in (spec.get(key) or {}).items():
            entry = entry if isinstance(entry, dict) else {}
            found[str(name)] = Statement(str(name), kind, str(entry.get("says", name)), entry)
        for name, scale in scales.items():
            for entry in scale.verdicts.get(key) or []:
                statement = found.setdefault(
                    str(entry.get("id")),
                    Statement(str(entry.get("id")), kind, str(entry.get("says", "")), entry),
                )
                statement.at[name] = entry
        groups[key] = list(found.values())
    for statement in (*groups["claims"], *groups["findings"]):
        statement.not_run = _reasons(statement, spec, scales)
    return Paper(slug, spec, scales, groups["claims"], groups["findings"])


def _reasons(statement: Statement, spec: dict[str, Any], scales: dict[str, Scale]) -> dict[str, str]:
    """Scale -> why the statement's experiment does not run there, as its YAML or its results say."""
    name = statement.best.get("experiment") or statement.spec.get("experiment")
    found = {}
    planned = ((spec.get("experiments") or {}).get(name) or {}).get("scale") or {}
    for scale in ordered({*planned, *scales}):
        entry = planned.get(scale) or {}
        reason = entry.get("not_run") if isinstance(entry, dict) else None
        if scale in scales and statement.at.get(scale, {}).get("verdict") in (None, "not run"):
            done = (scales[scale].verdicts.get("experiments") or {}).get(name) or {}
            reason = done.get("not_run") or reason
        if reason:
            found[scale] = str(reason)
    return found


def load_yaml(path: Path) -> dict[str, Any]:
    """A YAML file as plain data."""
    data = yamls.load(path)
    return data if isinstance(data, dict) else {}


def run_cells(folder: Path) -> list[dict[str, Any]]:
    """Published runs counted per experiment, method and task, with statuses and seconds summed."""
    names = ("experiment", "method", "task")
    cells: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in read_runs(folder):
        key = tuple(str(row.get(name) or "") for name in names)
        cell = cells.setdefault(key, {"runs": 0, "seconds": 0.0, "statuses": Counter()})
        cell["runs"] += 1
        cell["statuses"][row.get("status") or "done"] += 1
        cell["seconds"] += float(row.get("seconds") or 0)
    return [dict(zip(names, key, strict=True)) | cell for key, cell in cells.items()]


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """Rows of the table ``runs`` (where there are many, only the columns needed here)."""
    return read_table(folder / "runs", ("experiment", "method", "task", "status", "seconds"))


def read_table(place: Path, columns: tuple[str, ...] | None = None) -> list[dict[str, Any]]:
    """Rows of ``<place>.csv``, or of ``<place>.parquet`` (there: of these columns alone); a missing table has none."""
    large = place.with_suffix(".parquet")
    if not large.is_file():
        return list(read_csv(place.with_suffix(".csv")))
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(large)
    names = [name for name in columns if name in file.schema_arrow.names] if columns else None
    rows: list[dict[str, Any]] = file.read(names).to_pylist()
    return rows


def read_csv(path: Path, limit: int | None = None) -> list[dict[str, str]]:
    """Rows of a CSV file as dictionaries; a missing file has none."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        return list(itertools.islice(reader, limit))


def settings(paper: Paper, scale: Scale | None) -> list[dict[str, Any]]:
    """Hyperparameters set by the paper's YAML, one row each: experiment, when, name, value, source."""
    entries = (scale.verdicts.get("settings") if scale else None) or [
        {"experiment": name, **entry}
        for name, experiment in (paper.spec.get("experiments") or {}).items()
        for entry in (experiment or {}).get("settings") or []
    ]
    return [
        {
            "experiment": entry.get("experiment", ""),
            "when": entry.get("when") or {},
            "name": name,
            "value": value,
            "source": str(entry.get("source") or "assumed"),
        }
        for entry in entries
        for name, value in (entry.get("set") or {}).items()
    ]


def origin(source: str) -> str:
    """Class of a setting's source: ``paper``, ``official code``, ``derived``, ``assumed`` or ``other``."""
    text = source.lower()
    for name in ("assumed", "official code", "derived"):
        if text.startswith(name):
            return name
    return "paper" if re.match(r"(paper|tab|fig|eq|sec|app|alg|thm|theorem|§|lemma|cor)", text) else "other"
