"""A Hydra multirun: Hydra expands and launches (with any of its sweepers and launchers), our store keeps the runs.

Hydra sees every ``key=value`` as a parameter of its own (``+p0``, ``+p1``, ...) and hands each job its values; what
they mean is for ``runners.run``, so that a sweep's runs have the checks, ids and messages of single runs.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

from runners import cli, places
from runners.errors import ConfigError, StoreError

OWN = ("again", "stale")  # options of the command, which no sweep varies


def run(arguments: list[str]) -> int:
    """Sweep; every combination is checked before the first one runs."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    flags = [text for text in arguments if text.startswith("-")]
    theirs = [text for text in arguments if text.lstrip("+~").startswith("hydra")]
    pairs = cli.pairs([text for text in arguments if text not in (*flags, *theirs)])
    own = {key: value for key, value in pairs if key in OWN}
    changes = list({key: value for key, value in pairs if key not in OWN}.items())
    _check(changes, own)
    sweep_dir = places.outputs() / "hydra" / "${now:%Y-%m-%d}" / "${now:%H-%M-%S}"
    settings = [f"hydra.sweep.dir='{sweep_dir}'", "hydra.output_subdir=null", "hydra/job_logging=stdout"]
    parameters = [f"+p{index}={text}" for index, (_, text) in enumerate(changes)]
    scratch = places.outputs().resolve() / "hydra"
    scratch.mkdir(parents=True, exist_ok=True)
    # In a folder that other machines see, as a launcher may run jobs there.
    with tempfile.TemporaryDirectory(prefix=".codes-", dir=scratch) as folder:

        @hydra.main(config_path=None, config_name=None, version_base="1.3")
        def job(_: DictConfig) -> int:
            from runners.run import one

            given = dict(cli.pairs([text.lstrip("+") for text in HydraConfig.get().overrides.task]))
            code = one({key: given[f"p{index}"] for index, (key, _) in enumerate(changes)} | own)
            (Path(folder) / f"{HydraConfig.get().job.num}-{os.getpid()}").write_text(str(code))
            return code

        problem = ""
        try:
            with (
                mock.patch.object(sys, "argv", [sys.argv[0], *flags, *settings, *theirs, *parameters]),
                mock.patch.dict(os.environ, {"HYDRA_FULL_ERROR": "1"}),  # errors reach us as exceptions
            ):
                job()
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(str(error)) from error
        except (ConfigError, StoreError):
            raise
        except Exception as error:  # a launcher's own: a job that died, a cluster that refuses
            problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
            print(f"error: {problem}; what is finished is kept", file=sys.stderr)
        codes = [int(path.read_text()) for path in Path(folder).iterdir()]
        return max([*codes, 1 if problem else 0])


def _check(changes: list[tuple[str, str]], own: dict[str, str]) -> None:
    """Compose every combination; an endless range (``interval``) is left to its sweeper."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from runners.run import checked

    choices: list[list[tuple[str, str]]] = []
    for key, text in changes:
        try:
            change = OverridesParser.create().parse_override(f"key={text}")
        except HydraException as error:
            raise ConfigError(f"{key}={text}: not a value ({str(error).splitlines()[0]})") from error
        if change.is_discrete_sweep():
            choices.append([(key, value) for value in change.sweep_string_iterator()])
        elif not change.is_sweep_override():
            choices.append([(key, text)])
    for combination in itertools.product(*choices):
        checked(dict(combination) | own)
