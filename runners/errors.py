"""Errors that are the user's to mend: one clear line, the place, the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(Exception):
    """Bad input. The command line prints its message as one line and exits with code 2."""


def nearest(name: str, options: Iterable[str]) -> str:
    """Return ``"; nearest: x"`` for the option closest to ``name`` (``""`` if nothing is close).

    Case and the part before the last ``/`` or ``.`` weigh less than the last part of the name.
    """
    pool = sorted({str(option) for option in options})
    hits = difflib.get_close_matches(name, pool, n=1, cutoff=0.5)
    if not hits:
        tails: dict[str, str] = {}
        for option in pool:
            tails.setdefault(option.replace(".", "/").rsplit("/", 1)[-1].lower(), option)
        tail = name.replace(".", "/").rsplit("/", 1)[-1].lower()
        hits = [tails[hit] for hit in difflib.get_close_matches(tail, tails, n=1, cutoff=0.5)]
    return f"; nearest: {hits[0]}" if hits else ""


class StoreError(Exception):
    """The store cannot be written (disk full, read-only): the sweep stops, finished runs stay."""


class Pending(Exception):
    """Runs were sent and nobody waits for them: later stages follow when they are done."""
