"""Judgement: finished runs become verdicts, figures, tables and a page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners import places, store
from runners.curves import Curves
from runners.store import write_atomic

if TYPE_CHECKING:
    import pandas as pd

    from runners.sweep import Sweep

LARGEST_CSV = 200_000  # bytes


class Evidence:
    """Frames of one experiment, as claims and figures read them."""

    def __init__(self, sweep: Sweep, experiment: str):
        from runners.claims import named_columns

        self.sweep, self.experiment = sweep, experiment
        self._records = {record["id"]: record for record in sweep.records(experiment)}
        self.curves = Curves(sweep.folder_of, self._records)
        self._rows: dict[str, pd.DataFrame] = {}
        cells = sweep.cells[experiment]
        always = {key for cell in cells for key in cell.coordinates}
        always |= set(named_columns(sweep.paper.claims | sweep.paper.findings))
        self.frame = store.frame_of(self._records.values(), always=sorted(always))
        self.frame.insert(1, "experiment", experiment)
        finals = {record["id"] for record in self._records.values() if record["status"] in store.FINAL}
        self._finished = self.frame[self.frame["id"].isin(finals)]

    def rows(self, unit: str) -> pd.DataFrame:
        """Rows of every run for one unit of replication."""
        if unit not in self._rows:
            self._rows[unit] = store.rows_frame(self._finished, self.sweep.folder_of, unit)
        return self._rows[unit]


def write(sweep: Sweep, folder: Path) -> dict[str, Any]:
    """Judge every claim, draw every figure, write the report folder; returns the verdicts."""
    folder.mkdir(parents=True, exist_ok=True)
    evidence = {name: Evidence(sweep, name) for name in sweep.cells}
    verdicts = judge(sweep, evidence)
    write_atomic(folder / "verdicts.json", json.dumps(verdicts, indent=1, allow_nan=False) + "\n")
    for old in ("tuning.csv", "tuning.parquet", "curves.csv", "curves.parquet"):  # of a report that had them
        (folder / old).unlink(missing_ok=True)
    _tables(sweep, evidence, folder)
    _figures(sweep, evidence, folder)
    _pages(sweep, verdicts, folder)
    return verdicts


def judge(sweep: Sweep, evidence: dict[str, Evidence]) -> dict[str, Any]:
    """The verdicts of a sweep, in the published form."""
    from runners import provenance

    claims = [_verdict(sweep, evidence, name, entry) for name, entry in sweep.paper.claims.items()]
    findings = [_verdict(sweep, evidence, name, entry) for name, entry in sweep.paper.findings.items()]
    revision, dirty = provenance.commit()
    found = sweep.provenance()
    return {
        "paper": sweep.paper.slug,
        "scale": sweep.scale,
        "commit": revision + "+" * dirty,
        "seconds": round(sum(result["wall_seconds"] for result in sweep.results.values()), 1),
        "modified": sweep.overrides.modified,
        "claims": claims,
        "findings": findings,
        "experiments": _experiments(sweep),
        "settings": _settings(sweep),
        "provenance": found,
    }


def _verdict(sweep: Sweep, evidence: dict[str, Evidence], name: str, entry: dict[str, Any]) -> dict[str, Any]:
    from runners.claims import judge as judge_claim

    experiment = entry.get("experiment")
    if experiment in sweep.skipped or (experiment is not None and experiment not in evidence):
        reason = sweep.skipped.get(str(experiment), "not asked for")
        return _ours(judge_claim(name, entry, None, scale=sweep.scale, not_run=reason))
    proof = evidence.get(str(experiment))
    record = judge_claim(
        name,
        entry,
        proof.frame if proof else None,
        scale=sweep.scale,
        curves=proof.curves if proof else None,
        rows=proof.rows if proof else None,
    )
    if sweep.overrides.modified and record["verdict"] not in ("shown", "not run"):
        note = "not judged: the command line changed the experiment"
        record |= {"verdict": "shown", "note": f"{note}. {record['note']}" if record.get("note") else note}
    if proof is not None and any(r.get("stale") for r in proof._records.values()):
        record["stale"] = True
    return _ours(record)


def _ours(record: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(record, default=_plain))
    return plain


def _plain(value: Any) -> Any:
    return (
        value.item()
        if hasattr(value, "item")
        else list(value)
        if isinstance(value, set | tuple)
        else str(value)
    )


def _experiments(sweep: Sweep) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, spec in sweep.paper.experiments.items():
        if name in sweep.skipped:
            found[name] = {"asks": spec.get("asks", ""), "runs": 0, "not_run": sweep.skipped[name]}
            continue
        records = sweep.records(name)
        statuses: dict[str, int] = {}
        for record in records:
            statuses[record["status"]] = statuses.get(record["status"], 0) + 1
        found[name] = {
            "asks": spec.get("asks", ""),
            "runs": len(records),
            "statuses": statuses,
            "seconds": round(sum(record["wall_seconds"] or 0 for record in records), 1),
            "tuning_runs": len(sweep.tables.get(name, [])),
            "not_run": None,
        }
    return found


def _settings(sweep: Sweep) -> list[dict[str, Any]]:
    return [
        {"experiment": name, "when": setting.get("when"), "set": setting["set"], "source": setting["source"]}
        for name, spec in sweep.paper.experiments.items()
        for setting in spec.get("settings") or []
    ]


def _tables(sweep: Sweep, evidence: dict[str, Evidence], folder: Path) -> None:
    """``runs`` (one row a run) and ``tuning`` (every candidate)."""
    import pandas as pd

    if evidence:
        runs = pd.concat([proof.frame for proof in evidence.values()], ignore_index=True)
        runs = runs.drop(columns=[column for column in runs if runs[column].isna().all()])
        _table(folder / "runs", runs, "%.10g")
    if sweep.tables:
        parts = [pd.DataFrame(table).assign(experiment=name) for name, table in sweep.tables.items()]
        tuning = pd.concat(parts, ignore_index=True)
        _table(folder / "tuning", tuning, "%.6g")


def _table(place: Path, table: pd.DataFrame, digits: str) -> None:
    """Write a table as CSV, or as Parquet where the text would be large (never both)."""
    text = ""
    for start in range(0, max(len(table), 1), 1000):  # no further than it takes to see that it is large
        part = table.iloc[start : start + 1000]
        text += part.to_csv(index=False, header=not start, float_format=digits, lineterminator="\n")
        if len(text) > LARGEST_CSV:
            break
    for suffix in (".csv", ".parquet"):
        place.with_suffix(suffix).unlink(missing_ok=True)
    if len(text) <= LARGEST_CSV:
        write_atomic(place.with_suffix(".csv"), text)
    else:
        plain = table.apply(lambda c: c.map(str, na_action="ignore") if c.dtype == object else c)
        plain.to_parquet(place.with_suffix(".parquet"), index=False, compression="zstd")


def _figures(sweep: Sweep, evidence: dict[str, Evidence], folder: Path) -> None:
    import pandas as pd

    from runners import figure_spec
    from runners.figures import draw

    (folder / "figures").mkdir(exist_ok=True)
    for old in (folder / "figures").glob("*.svg"):
        old.unlink(missing_ok=True)
    drawn = []
    for name, spec in sweep.paper.figures.items():
        proof = evidence.get(str(spec.get("experiment")))
        if proof is None or not len(proof._finished):
            continue
        methods = figure_spec.methods(sweep.paper.raw)
        place = folder / "figures"
        drawn.append(draw(name, spec, proof.frame, proof.curves, place, rows=proof.rows, methods=methods))
    if drawn:
        _table(folder / "curves", pd.concat(drawn, ignore_index=True), "%.6g")


def _pages(sweep: Sweep, verdicts: dict[str, Any], folder: Path) -> None:
    from runners import pages

    pages.write_readme(folder, verdicts, sweep.paper.raw)
    reference = places.results() / sweep.paper.slug / sweep.scale
    pages.build_paper(sweep.paper.slug, sweep.scale, folder, reference, folder / "index.html")


def show(verdicts: dict[str, Any], reference: Path) -> None:
    """Print the verdict table, beside the published verdicts where there are any."""
    from rich.console import Console
    from rich.table import Table

    from runners.published import SMOKE, SYMBOLS

    published = {}
    if (reference / "verdicts.json").is_file():
        stored = json.loads((reference / "verdicts.json").read_text(encoding="utf-8"))
        published = {entry["id"]: entry for entry in stored["claims"] + stored["findings"]}
    table = Table(title=f"{verdicts['paper']} at scale {verdicts['scale']}", title_justify="left")
    for column in ("", "claim", "expected", "ours", "95% interval", "paper", "units", "verdict", "published"):
        table.add_column(column, overflow="fold", no_wrap=column in ("ours", "verdict", "units"))
    for kind in ("claims", "findings"):
        for entry in verdicts[kind]:
            low, high = number(entry.get("low")), number(entry.get("high"))
            table.add_row(
                SYMBOLS.get(entry["verdict"], "?"),
                entry["id"] + (" (finding)" if kind == "findings" else ""),
                str(entry.get("expect") or ""),
                number(entry.get("value")),
                f"{low} … {high}" if low or high else "",
                number(entry.get("reported")),
                str(entry.get("units") or ""),
                entry["verdict"],
                published.get(entry["id"], {}).get("verdict", ""),
            )
        if kind == "claims" and verdicts["findings"]:
            table.add_section()
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    if verdicts["scale"] == "smoke":
        print(SMOKE)


def number(value: Any) -> str:
    """A number for people: four significant digits; mappings as ``cell: number``."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {number(item)}" for key, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
