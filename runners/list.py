"""Lists papers, methods and tasks, at once: no numerical library is imported."""

from __future__ import annotations

import json

from runners import cli, places, yamls
from runners.errors import ConfigError, nearest

USAGE = """
usage: python -m runners.list [papers|methods|tasks|data|models|launchers|trackers] [kind=<kind>]

  Papers come with the verdicts of their published results.
"""
JUDGED = ("reproduced", "contradicted", "inconclusive")
GROUPS = {
    "papers": "paper",
    "methods": "method",
    "tasks": "task",
    "data": "data",
    "models": "model",
    "launchers": "launcher",
    "trackers": "tracker",
}


def run(arguments: list[str]) -> int:
    """The command line."""
    words = [argument for argument in arguments if "=" not in argument]
    options = dict(cli.pairs([argument for argument in arguments if "=" in argument]))
    kind = options.pop("kind", None)
    if options:
        raise ConfigError(f"unknown option '{next(iter(options))}'{nearest(next(iter(options)), ['kind'])}")
    what = words[0] if words else "papers"
    if what not in GROUPS or len(words) > 1:
        raise ConfigError(f"unknown list '{' '.join(words)}'{nearest(what, GROUPS)}")
    if what == "papers":
        _papers()
        return 0
    names = [name for name in places.options(GROUPS[what]) if kind is None or name.startswith(f"{kind}/")]
    if kind is not None and not names:
        kinds = {name.split("/")[0] for name in places.options(GROUPS[what]) if "/" in name}
        raise ConfigError(f"unknown kind '{kind}'{nearest(kind, kinds)}")
    print("\n".join(names))
    return 0


def _papers() -> None:
    width = max((len(slug) for slug in places.options("paper")), default=0)
    for slug in places.options("paper"):
        path = places.option_file("paper", slug)
        title = str((yamls.load(path) or {}).get("title", "")) if path else ""
        print(f"{slug:<{width}}  {title}{_verdicts(slug)}")


def _verdicts(slug: str) -> str:
    found = ""
    for scale in ("laptop", "paper", "smoke"):
        path = places.results() / slug / scale / "verdicts.json"
        if path.is_file() and not (found and scale == "smoke"):
            verdicts = [claim["verdict"] for claim in json.loads(path.read_bytes())["claims"]]
            counts = ", ".join(f"{verdicts.count(v)} {v}" for v in JUDGED if v in verdicts)
            found += f"  [{scale}: {counts or 'nothing judged'}]"
    return found


if __name__ == "__main__":
    cli.main(run, USAGE)
