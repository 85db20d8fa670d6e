"""Shows a paper: what it claims, which experiments examine that, with which settings, and what was found."""

from __future__ import annotations

import json

from runners import cli, places
from runners.errors import ConfigError, nearest
from runners.paper import SCALES, Paper, grids, tune_rules

USAGE = """
usage: python -m runners.show paper=<slug>
"""


def run(arguments: list[str]) -> int:
    """The command line."""
    options = dict(cli.pairs(arguments))
    paper = Paper(cli.paper(options, ("paper",)))
    if options:
        raise ConfigError(f"unknown option '{next(iter(options))}'{nearest(next(iter(options)), ['paper'])}")
    raw = paper.raw
    print(f"{paper.title}\n{raw.get('authors', '')}. {raw.get('venue', '')}, arXiv {raw.get('arxiv', '?')}")
    if raw.get("code"):
        print(f"official code: {raw['code'].get('url', '?')} at {raw['code'].get('commit', '?')}")
    print("\nExperiments")
    for name, spec in paper.experiments.items():
        print(f"  {name}: {spec.get('asks', '')}")
        for grid in grids(spec):
            print("    " + "; ".join(f"{key}: {_short(value)}" for key, value in grid.items()))
        for setting in spec.get("settings") or []:
            print(f"    set {_short(setting['set'])} ({setting['source']})")
        for rule in tune_rules(spec):
            print(f"    tuned: {_short(rule['grid'])} by {rule['metric']}")
        for scale in SCALES:
            if reason := paper.not_run(name, scale):
                print(f"    at {scale}: not run ({reason})")
    for kind, entries in (("Claims", paper.claims), ("Findings", paper.findings)):
        if entries:
            print(f"\n{kind}")
        for name, entry in entries.items():
            print(f"  {name}: {' '.join(str(entry.get('says', '')).split())}")
            print(
                f"    expected {entry.get('expect', '-')} ({entry.get('source', '')}){_found(paper.slug, name)}"
            )
    print(f"\nmake reproduce-{paper.slug} [scale={'|'.join(SCALES)}]")
    return 0


def _short(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_short(item)}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _found(slug: str, claim: str) -> str:
    text = ""
    for scale in SCALES:
        path = places.results() / slug / scale / "verdicts.json"
        if path.is_file():
            verdicts = json.loads(path.read_bytes())
            for entry in verdicts["claims"] + verdicts["findings"]:
                if entry["id"] == claim and entry["verdict"] not in ("not run",):
                    value = entry.get("value")
                    found = f" {value:.4g}" if isinstance(value, float) else ""
                    text += f"; {scale}: {entry['verdict']}{found}"
    return text


if __name__ == "__main__":
    cli.main(run, USAGE)
