"""What the command lines share: ``key=value`` arguments, one-line errors, exit codes.

Exit codes: 0 all well; 1 some run failed, or a result could not be written; 2 bad input; 130 stopped by Ctrl-C, 143 by
SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from runners.errors import ConfigError, StoreError, nearest


def main(run: Callable[[list[str]], int], usage: str, arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit; bad input is one line on stderr and exit code 2, without a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any(argument in ("-h", "--help") for argument in given):
        print(usage.strip())
        sys.exit(0)
    if hasattr(os, "sched_getaffinity"):  # one thread per process, before any numerical library starts
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, "1")
    stopped_by: list[int] = []
    try:
        _not_a_rank()
        with _sigterm_as_ctrl_c(stopped_by):
            code = run(given)
    except ConfigError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        code = 2
    except StoreError as error:
        print(
            f"error: {error}; what is finished is kept, start again when it can be written", file=sys.stderr
        )
        code = 1
    except KeyboardInterrupt:
        print("stopped; what is finished is kept, the same command goes on from there", file=sys.stderr)
        code = 143 if stopped_by else 130
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    sys.exit(code)


@contextlib.contextmanager
def _sigterm_as_ctrl_c(received: list[int]) -> Iterator[None]:
    """Inside, SIGTERM stops a command as Ctrl-C does, so that its runs save their checkpoints; it is noted."""

    def stop(number: int, _: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # somebody else's to handle
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _not_a_rank() -> None:
    """Refuse to be started by torchrun: each rank would start the whole sweep."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError(
            "started under torchrun: start the command by itself and give it launcher=torchrun launcher.nproc=<ranks>"
        )


def pairs(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Split ``key=value`` arguments."""
    found = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key:
            raise ConfigError(f"'{argument}' is not of the form key=value")
        found.append((key, value))
    return found


def value_of(text: str, key: str) -> Any:
    """A value as Hydra's command line reads it: ``1e-3``, ``[1,2]``, ``null``, ``true``, a text."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(f"key={text}")
        if override.is_sweep_override():
            raise ConfigError(
                f"{key}={text}: one value is expected; python -m runners.run -m sweeps over several"
            )
        return override.value()
    except HydraException as error:
        raise ConfigError(f"{key}={text}: not a value ({str(error).splitlines()[0]})") from error


def check_names(options: Iterable[str], known: Sequence[str]) -> None:
    """Raise ConfigError for an option that is none; what has a dot in it is a leaf and is checked later."""
    for key in options:
        if "." not in key and key.lstrip("+") not in known:
            raise ConfigError(f"unknown option '{key}'{nearest(key, known)}")


def paper(options: dict[str, str], known: Sequence[str]) -> str:
    """Remove the paper's name; where there is none, say so, or which option was misspelt."""
    if "paper" not in options:
        check_names(options, known)
        raise ConfigError("which paper? paper=<slug>; python -m runners.list shows them")
    return options.pop("paper")


def take(options: dict[str, str], key: str, default: str, known: Sequence[str]) -> str:
    """Remove an option that has a fixed set of values."""
    value = options.pop(key, default)
    if value not in known:
        raise ConfigError(f"{key}={value}: expected one of {', '.join(known)}{nearest(value, known)}")
    return value


def flag(options: dict[str, str], key: str, default: bool = False) -> bool:
    """Remove a true/false option."""
    return take(options, key, "true" if default else "false", ("true", "false")) == "true"
