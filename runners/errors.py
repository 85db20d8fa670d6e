"""Errors that are the user's to mend: one clear line, the place, the nearest valid name."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)


class ConfigError(Exception):
    """Bad input. The command line prints its message as one line and exits with code 2."""


def nearest(name: str, options: Iterable[str]) -> str:
    """Return ``"; nearest: x"`` for the option closest to ``name`` (``""`` if nothing is close).

    An option whose last part (after the last ``/`` or ``.``, whatever its case) is the name's comes first: ``adam``
    means ``train/adam``. A name without a ``/`` is compared with the last parts, then with whole names.
    """
    pool = sorted({str(option) for option in options})
    tails: dict[str, list[str]] = {}
    for option in pool:
        tails.setdefault(_last_part(option), []).append(option)
    tail = _last_part(name)
    if tail and tail in tails:
        hits = difflib.get_close_matches(name, tails[tail], n=1, cutoff=0.0)
        return f"; nearest: {hits[0]}"
    near = [tails[hit][0] for hit in difflib.get_close_matches(tail, tails, n=1, cutoff=0.5) if tail]
    whole = difflib.get_close_matches(name, pool, n=1, cutoff=0.5)
    slashed = any("/" in option for option in pool)
    hits = near or whole if slashed and "/" not in name else whole or near
    return f"; nearest: {hits[0]}" if hits else ""


def _last_part(name: str) -> str:
    return name.replace(".", "/").rsplit("/", 1)[-1].lower()


def unwritable(problem: OSError, root: object = None) -> bool:
    """Whether an error means that nothing can be written: disk full, read-only, or about a file below ``root``."""
    return problem.errno in _UNWRITABLE or (
        root is not None and str(problem.filename or "").startswith(str(root))
    )


class StoreError(Exception):
    """The store cannot be written (disk full, read-only): the sweep stops, finished runs stay."""


class StoppedEarly(Exception):
    """A run failed and the sweep was asked to stop at the first failure."""


class Pending(Exception):
    """Runs were sent and nobody waits for them: later stages follow when they are done."""
