"""The scoreboard and a page per paper, built from published results."""

from __future__ import annotations

import time
from pathlib import Path

from runners import cli, places
from runners.errors import ConfigError, StoreError, nearest

USAGE = """
usage: python -m runners.report [results=<folder>] [readme=<file>]

Builds results/index.html, a page per paper, results/README.md and the scoreboard in README.md.

  results=<folder>   published results elsewhere; leaves the project's README alone
  readme=<file>      the README whose scoreboard is renewed
"""


def run(arguments: list[str]) -> int:
    """The command line."""
    options = dict(cli.pairs(arguments))
    for key in options:
        if key not in ("results", "readme"):
            raise ConfigError(f"unknown option '{key}'{nearest(key, ('results', 'readme'))}")
    results = Path(options["results"]) if "results" in options else places.results()
    readme = Path(options["readme"]) if "readme" in options else None
    if readme is not None and not readme.is_file():
        raise ConfigError(f"there is no file {readme}")
    if readme is None and results == places.HOME / "results":
        readme = places.HOME / "README.md"

    from runners import pages

    start = time.perf_counter()
    try:
        written = pages.build_all(results, readme)
    except OSError as problem:
        raise StoreError(f"cannot write {problem.filename}: {problem.strerror}") from problem
    print(f"{len(written)} files in {time.perf_counter() - start:.1f} s: {results / 'index.html'}")
    return 0


if __name__ == "__main__":
    cli.main(run, USAGE)
