"""Leases: which process works on which run, safe on network file systems and after ``kill -9``.

Each process holds one heartbeat lease (filelock's SoftFileLease: host, process, heartbeat). A run is claimed by
hard-linking a file that names the claimer's lease into the run's folder: one system call, atomic on network file
systems too. A claim whose lease is dead (process gone, or a silent host) is taken over.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path

from filelock import SoftFileLease, Timeout

LEASE_SECONDS = float(os.environ.get("REPRISE_LEASE_SECONDS", "60"))
SILENT_LEASES = 3  # so many durations without a heartbeat are no hiccup


class Claims:
    """This process's claims under one store root."""

    def __init__(self, root: Path):
        self.folder = root / ".leases"
        self._mine: SoftFileLease | None = None
        self._token = ""
        self._others: dict[str, SoftFileLease] = {}

    @property
    def token(self) -> str:
        """Name of this process's lease; taking it starts its heartbeat."""
        if self._mine is None or not self._mine.is_locked:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._token = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
            self._mine = self._lease(self._token)
            self._mine.acquire()
            self._card.write_text(self._token)
            Finalize(None, self.close, exitpriority=1)  # atexit does not reach worker processes
        return self._token

    def close(self) -> None:
        """Give this process's lease back."""
        if self._mine is not None:
            self._mine.release()  # first: tidy() finds the card of a process that is killed in between
            self._card.unlink(missing_ok=True)
            self._card.with_suffix(".progress").unlink(missing_ok=True)
            self._mine = None

    @property
    def _card(self) -> Path:
        """The file whose hard links are this process's claims."""
        return self.folder / f"{self._token}.claim"

    def _lease(self, token: str, seconds: float | None = None) -> SoftFileLease:
        path = self.folder / f"{token}.lease"
        return SoftFileLease(path, lease_duration=seconds or LEASE_SECONDS, timeout=0, thread_local=False)

    def alive(self, token: str) -> bool:
        """Whether the process behind a token still holds its lease.

        A dead process of this host is seen at once; another host's after the lease's duration of watching, or at
        once where its heartbeat stopped several durations ago.
        """
        if token == self._token and self._mine is not None:
            return True
        path = self.folder / f"{token}.lease"
        if not token or not path.exists():
            return False
        host, seconds = _marker(path)
        if host != socket.gethostname() and self._silence(path) > SILENT_LEASES * seconds:
            return False
        other = self._others.setdefault(token, self._lease(token, seconds))
        try:
            other.acquire()
        except Timeout:
            return True
        other.release()
        self._others.pop(token, None)
        return False

    def _silence(self, lease: Path) -> float:
        """Seconds since a lease's last heartbeat, by the clock of the file server where that is to be had."""
        now = time.time()
        with contextlib.suppress(FileNotFoundError):
            if self._mine is not None:
                self._card.touch()
                now = self._card.stat().st_mtime
            return now - lease.stat().st_mtime
        return 0.0

    def tidy(self) -> None:
        """Remove what processes that were killed have left behind."""
        for card in self.folder.glob("*.claim"):
            if not self.alive(card.stem):
                card.unlink(missing_ok=True)
                card.with_suffix(".progress").unlink(missing_ok=True)

    def holder(self, folder: Path) -> str | None:
        """Token of the living process that works on ``folder``, or None."""
        try:
            token = (folder / "claim").read_text()
        except FileNotFoundError:
            return None
        return token if self.alive(token) else None

    @contextlib.contextmanager
    def claim(self, folder: Path) -> Iterator[bool]:
        """Claim a run's folder: yields True if it is ours now, False if a living process has it."""
        path = folder / "claim"
        got = self._create(path) or self._take_over(path)
        try:
            yield got
        finally:
            if got:
                with contextlib.suppress(FileNotFoundError):
                    if path.read_text() == self._token:  # not one that took over from us
                        path.unlink()

    def _create(self, path: Path) -> bool:
        _ = self.token
        try:
            os.link(self._card, path)
        except FileExistsError:
            return False
        return True

    def _take_over(self, path: Path) -> bool:
        """Replace a dead process's claim. The guard lets one contender at a time decide."""
        guard = SoftFileLease(path.with_name("claim.guard"), lease_duration=LEASE_SECONDS, timeout=0)
        try:
            with guard:
                try:
                    token = path.read_text()
                except FileNotFoundError:
                    return self._create(path)
                if self.alive(token):
                    return False
                path.unlink(missing_ok=True)
                return self._create(path)
        except Timeout:
            return False


def _marker(lease: Path) -> tuple[str, float]:
    """Host and duration that a lease states (ours where it does not: it is just being written)."""
    try:
        text = lease.read_text(errors="replace")
    except FileNotFoundError:
        text = ""
    host, seconds = (re.search(rf"\b{key}=(\S+)", text) for key in ("host", "duration"))
    return host[1] if host else socket.gethostname(), float(seconds[1]) if seconds else LEASE_SECONDS
