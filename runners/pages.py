"""The scoreboard, a page per paper, and the README files, all from published results and papers' YAML.

Pages need no network and no server: style and script stand in the page, figures too while the page stays
under `PAGE_BYTES` (beyond that they are linked). A content policy forbids everything else. Names from
configs and results are escaped.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from runners import formats, interval_strip, places, published
from runners.claims import expected_wrong
from runners.published import JUDGED, SCALES, VERDICTS, Paper, Scale, Statement

TEMPLATES = Path(__file__).with_name("templates")
PAGE_BYTES = 900_000
MAX_ROWS = 150
START, END = "<!-- scoreboard:start -->", "<!-- scoreboard:end -->"


@lru_cache(maxsize=2)
def environment(markup: bool) -> Environment:
    """Templates with their filters; ``markup`` escapes for HTML, else nothing is escaped but by `markdown`."""
    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=markup,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    names = (
        "number value bounds reported told found why reason note changed scale_rows inline duration memory"
    )
    for name in f"{names} hardware statuses plural safe_url css symbol emoji markdown".split():
        env.filters[name] = getattr(formats, name)
    env.filters |= {
        "pretty": formats.expectation,
        "known": published.known,
        "origin": published.origin,
        "strip": interval_strip.strip,
        "same": same,
    }
    env.globals |= {"verdicts": VERDICTS, "smoke": published.SMOKE}
    return env


def build_all(results: Path | None = None, readme: Path | None = None) -> list[Path]:
    """Build the scoreboard, every paper's page, ``results/README.md`` and the README's block.

    Args:
        results: folder of published results, `places.results` by default; pages go there.
        readme: the README whose block between the scoreboard marks is renewed; None leaves it alone.

    Returns:
        The files written.
    """
    results = places.results() if results is None else results
    papers = published.read_papers([root / "paper" for root in places.conf_roots()], results)
    written = []
    for paper in papers:
        written.append(write(results / paper.slug / "index.html", paper_page(paper, results / paper.slug)))
    written.append(write(results / "index.html", index_page(papers)))
    written.append(write(results / "README.md", scoreboard_markdown(papers)))
    if readme is not None and readme.is_file():
        text = readme.read_text(encoding="utf-8")
        written.append(write(readme, replace_block(text, scoreboard_block(papers))))
    return written


def build_paper(slug: str, scale: str, fresh: Path, reference: Path, out: Path) -> Path:
    """Build the page of one paper's fresh results, beside the published ones where there are any.

    Args:
        slug, scale: the paper and the scale that ran.
        fresh: folder of the fresh results (as ``results/<slug>/<scale>/``).
        reference: folder of the published results; it may be missing.
        out: the page to write.
    """
    found = published.read_scale(fresh)
    if found is None:
        raise FileNotFoundError(f"no readable verdicts.json in {fresh}")
    file = places.option_file("paper", slug)
    paper = published.assemble(slug, published.load_yaml(file) if file else {}, {scale: found})
    found.name = scale
    beside = None if found.verdicts.get("modified") else published.read_scale(reference)
    return write(out, paper_page(paper, out.parent, fresh=found, reference=beside))


def write_readme(folder: Path, verdicts: dict[str, Any], paper: dict[str, Any]) -> Path:
    """Write ``folder/README.md``: one scale's results for people who read them on a forge.

    Args:
        folder: holds the results (figures are linked).
        verdicts: the content of ``verdicts.json``.
        paper: the paper's YAML.
    """
    scale = Scale(str(verdicts.get("scale", folder.name)), folder, verdicts)
    view = published.assemble(str(verdicts.get("paper", "")), paper, {scale.name: scale})
    settings = published.settings(view, scale)
    text = (
        environment(False)
        .get_template("scale.md")
        .render(
            paper=view,
            scale=scale,
            settings_line=settings_line(settings),
            summary=summary(view, scale),
            figures=[_figure(view, scale, path, folder, None) for path in scale.figures],
        )
    )
    return write(folder / "README.md", text)


def write(path: Path, text: str) -> Path:
    """Write a text file with Unix line ends, making its folder; the same text leaves the file untouched."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.rstrip().encode("utf-8") + b"\n"
    if not path.is_file() or path.read_bytes() != data:
        path.write_bytes(data)
    return path


def index_page(papers: Sequence[Paper]) -> str:
    """The scoreboard."""
    entry = {paper.slug: f"{quote(paper.slug)}/index.html" for paper in papers}
    found = {scale for paper in papers for scale in paper.scales}
    return _html(
        "index",
        rows=[{"paper": p, "statements": p.claims, "href": entry[p.slug]} for p in papers],
        finding_rows=[
            {"paper": p, "statements": p.findings, "href": entry[p.slug]} for p in papers if p.findings
        ],
        kinds=sorted({kind for paper in papers for kind in paper.kinds}),
        scales=[name for name in (*SCALES, *published.ordered(found - set(SCALES))) if name in found],
        **totals(papers),
    )


def totals(papers: Sequence[Paper]) -> dict[str, Any]:
    """What the scoreboards sum up over all papers."""
    counts: Counter[str] = sum((paper.counts for paper in papers), Counter())
    claims = [claim for paper in papers for claim in paper.claims]
    findings = Counter(finding.verdict for paper in papers for finding in paper.findings)
    return {
        "papers": papers,
        "counts": counts,
        "findings": ", ".join(f"{findings[name]} {name}" for name in VERDICTS if findings[name]),
        "claims": len(claims),
        "with_results": sum(bool(paper.scales) for paper in papers),
        "judged": sum(counts[name] for name in JUDGED),
        "wrong": wrong_by_chance(claims),
        "cpu_seconds": sum(paper.cpu_seconds for paper in papers),
    }


def paper_page(paper: Paper, folder: Path, fresh: Scale | None = None, reference: Scale | None = None) -> str:
    """The page of one paper.

    Args:
        paper: with the results at every scale to be shown.
        folder: where the page will stand (links are relative to it).
        fresh: the scale just run, for a fresh report.
        reference: the published results to set beside it.
    """
    scales = list(paper.scales.values())
    before: dict[str, dict[str, Any]] = {}
    if reference:
        for key in ("claims", "findings"):
            before |= {str(entry.get("id")): entry for entry in reference.verdicts.get(key) or []}
    shown = settings = published.settings(paper, scales[0] if scales else None)
    context = {
        "paper": paper,
        "home": None if fresh else "../index.html",
        "fresh": fresh,
        "reference": reference,
        "before": before,
        "comparison": comparison(paper, before) if reference else None,
        "summary": summary(paper, paper.main),
        "scales": [_scale_view(scale, folder) for scale in scales],
        "experiments": [_experiment_view(paper, name, spec or {}) for name, spec in _experiments(paper)],
        "settings": shown[:MAX_ROWS],
        "settings_line": settings_line(settings),
        "assumptions": _texts(paper.spec.get("assumptions")),
        "tuning": [view for scale in scales if (view := _tuning_view(scale, folder))],
    }
    first = paper.main
    inked = sorted(scales, key=lambda scale: scale is not first)
    groups = [(scale, f"{scale.name} scale" + (", fresh" if reference else "")) for scale in inked]
    groups += [(reference, f"{reference.name} scale, published")] if reference else []
    page, room = "", [10 * PAGE_BYTES]
    for _ in range(2):
        given = room[0]
        figures = [
            {"label": label, "figures": [_figure(paper, scale, path, folder, room) for path in scale.figures]}
            for scale, label in groups
        ]
        page = _html("paper", figures=[group for group in figures if group["figures"]], **context)
        size = len(page.encode())
        if size <= PAGE_BYTES:
            break
        # Too large: figures may take what the page without them leaves.
        room = [PAGE_BYTES - (size - (given - room[0]))]
    return page


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two entries have the very same numbers."""
    return all(a.get(key) == b.get(key) for key in ("value", "low", "high"))


def comparison(paper: Paper, before: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Fresh against published results: a sentence, and whether every verdict agrees."""
    both = [s for s in (*paper.claims, *paper.findings) if s.id in before and s.at]
    agree = sum(published.known(before[s.id].get("verdict")) == s.verdict for s in both)
    equal = sum(same(before[s.id], s.best) for s in both)
    text = (
        f"Fresh against published results: {agree} of {len(both)} verdicts agree; "
        f"{equal} of {len(both)} numbers and intervals are identical to the last digit."
    )
    return {"text": text, "agree": agree == len(both)}


def summary(paper: Paper, scale: Scale | None) -> str:
    """What ran, in a sentence or two."""
    if scale is None:
        return "No results are published yet: every claim below is planned, none has been tried."
    experiments = (scale.verdicts.get("experiments") or {}).values()
    runs = sum(int(entry.get("runs") or 0) for entry in experiments)
    hardware = formats.hardware(scale.provenance.get("hardware"))
    machine = f" on {hardware}" if hardware else ""
    text = (
        f"At {scale.name} scale {paper.judged(scale.name)} of {len(paper.claims)} claims were judged from "
        f"{formats.number(runs)} runs, {formats.duration(scale.cpu_seconds)} of CPU time{machine}, code at commit "
        f"{str(scale.verdicts.get('commit') or 'unknown')[:13]}."
    )
    others = [f"{name} ({paper.judged(name)} judged)" for name in paper.scales if name != scale.name]
    return f"{text} Also run: {', '.join(others)}." if others else text


def settings_line(settings: Sequence[dict[str, Any]]) -> str:
    """How many hyperparameters are set, from which sources, and how many of them are assumed."""
    if not settings:
        return "No hyperparameter is set beside the defaults of methods and tasks."
    counts = Counter(published.origin(row["source"]) for row in settings)
    names = {
        "paper": "from the paper",
        "official code": "from the official code",
        "derived": "derived from its statements",
    }
    names |= {"other": "from other sources"}
    parts = [f"{counts[key]} {text}" for key, text in names.items() if counts[key]]
    assumed = f"{counts['assumed']} assumed" if counts["assumed"] else "none assumed"
    return f"{len(settings)} {formats.plural('setting', len(settings))}: {', '.join([*parts, assumed])}."


def wrong_by_chance(statements: Iterable[Statement]) -> float | None:
    """Verdicts expected to be wrong by chance, at most; None where nothing is judged."""
    entries = []
    for entry in (statement.best for statement in statements if statement.verdict in JUDGED):
        cells = [{"units": cell.get("units") or 0} for cell in entry.get("cells") or [entry]]
        entries.append({"verdict": entry["verdict"], "expect": entry.get("expect"), "cells": cells})
    return expected_wrong(entries) if entries else None


def scoreboard_markdown(papers: Sequence[Paper]) -> str:
    """``results/README.md``."""
    return environment(False).get_template("scoreboard.md").render(**totals(papers))


def scoreboard_block(papers: Sequence[Paper]) -> str:
    """What stands between the marks in the project's README."""
    return environment(False).get_template("block.md").render(**totals(papers)).strip()


def replace_block(text: str, block: str) -> str:
    """``text`` with ``block`` between the scoreboard marks; unchanged where the marks are missing."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    return f"{before}{START}\n{block}\n{END}{after}" if start and end else text


def _html(name: str, **context: Any) -> str:
    """A page with its style and script inside, and a policy that admits only these."""
    script = (TEMPLATES / f"{name}.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    css = "".join((TEMPLATES / part).read_text(encoding="utf-8") for part in ("style.css", f"{name}.css"))
    page = environment(True).get_template(f"{name}.html")
    return page.render(
        script=Markup(script), script_hash=Markup(f"sha256-{digest}"), css=Markup(css), **context
    )


def _experiments(paper: Paper) -> list[tuple[str, Any]]:
    return list((paper.spec.get("experiments") or {}).items())


def _experiment_view(paper: Paper, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    runs, times, first = [], [], ""
    for scale in paper.scales.values():
        done = (scale.verdicts.get("experiments") or {}).get(name)
        if not done:
            continue
        if done.get("not_run"):
            runs.append(f"{scale.name}: {done['not_run']}")
            continue
        first = first or scale.name
        tuned = f" + {done['tuning_runs']} tuning" if done.get("tuning_runs") else ""
        runs.append(
            f"{scale.name}: {formats.statuses(done.get('statuses') or {'runs': done.get('runs', 0)})}{tuned}"
        )
        times.append(formats.duration(done.get("seconds")))
    return {
        "name": name,
        "asks": spec.get("asks", ""),
        "runs": runs,
        "times": times,
        "scale": first or "laptop",
        "text": formats.to_yaml({key: part for key, part in spec.items() if key != "asks"})[:20_000],
    }


def _scale_view(scale: Scale, folder: Path) -> dict[str, Any]:
    found = scale.provenance
    cells = published.run_cells(scale.folder)
    runs = Counter(status for cell in cells for status in cell["statuses"].elements())
    costs = {
        "Runs": formats.statuses(runs) if runs else None,
        "CPU time": formats.duration(found.get("cpu_seconds")),
        "GPU time": formats.duration(found["gpu_seconds"]) if found.get("gpu_seconds") else None,
        "Time, one run after another": formats.duration(scale.verdicts.get("seconds")),
        "Preparation": formats.duration(found["artifact_seconds"]) if found.get("artifact_seconds") else None,
        "Peak memory": formats.memory(found.get("peak_memory_mb")),
    }
    facts = {
        "Commit": scale.verdicts.get("commit"),
        "Commits of the runs": formats.inline(found["run_commits"]) if found.get("run_commits") else None,
        "Python": found.get("python"),
        "Packages": formats.inline(found["packages"]) if found.get("packages") else None,
        "Hardware": formats.hardware(found.get("hardware")),
        "Threads a run": found.get("threads"),
    }
    return {
        "name": scale.name,
        "cost": [(name, text) for name, text in costs.items() if text],
        "facts": [(name, text) for name, text in facts.items() if text],
        "cells": cells[:MAX_ROWS],
        "more_cells": len(cells) - MAX_ROWS if len(cells) > MAX_ROWS else 0,
        "links": [(path.name, _link(path, folder)) for path in scale.data_files],
    }


def _tuning_view(scale: Scale, folder: Path) -> dict[str, Any] | None:
    rows = published.read_table(scale.folder / "tuning")
    if not rows:
        return None
    columns = list(rows[0])[:12]
    kept = [[_cell(row[name]) for name in columns] for row in rows[:MAX_ROWS]]
    file = next(path for path in scale.data_files if path.stem == "tuning")
    href = _link(file, folder)
    return {
        "scale": scale.name,
        "columns": columns,
        "rows": kept,
        "total": len(rows),
        "href": href,
        "name": file.name,
    }


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _figure(paper: Paper, scale: Scale, path: Path, folder: Path, room: list[int] | None) -> dict[str, Any]:
    """A figure for a page; it stands in the page while ``room`` (bytes left) allows."""
    spec = (paper.spec.get("figures") or {}).get(path.stem) or {}
    asks = ((paper.spec.get("experiments") or {}).get(spec.get("experiment")) or {}).get("asks", "")
    svg = path.read_text(encoding="utf-8")
    size = {name: re.search(rf'<svg[^>]* {name}="([\d.]+)', svg) for name in ("width", "height")}
    width, height = (float(found[1]) * 4 / 3 if found else 400.0 for found in size.values())
    title = str(spec.get("title") or path.stem)
    source = href = _link(path, folder)
    if room is not None:
        data = "data:image/svg+xml," + quote(svg, safe=" /:=,;.()-+*!@?")
        if len(data) <= room[0]:
            room[0] -= len(data)
            source = data
    return {
        "title": title,
        "alt": f"{title}. {asks}".strip(),
        "caption": str(spec.get("caption") or asks or ""),
        "src": source,
        "href": href,
        "scale": scale.name,
        "width": round(width),
        "height": round(height),
        "wide": width > 620,
    }


def _link(path: Path, folder: Path) -> str:
    return quote(Path(os.path.relpath(path, folder)).as_posix())


def _texts(data: Any) -> list[str]:
    if isinstance(data, dict):
        return [f"{key}: {part}" for key, part in data.items()]
    return [str(part) for part in data] if isinstance(data, list) else [str(data)] if data else []
