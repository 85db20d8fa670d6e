"""A Hydra multirun: Hydra expands and launches (with any of its sweepers and launchers), our store keeps the runs."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

from runners import cli, places
from runners.errors import ConfigError

OWN = ("again", "stale")  # options of the command, not keys of a run


def run(arguments: list[str]) -> int:
    """Sweep; every combination is checked before the first one runs."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    own = dict(cli.pairs([text for text in arguments if text.partition("=")[0] in OWN]))
    others = [text for text in arguments if text.partition("=")[0] not in OWN]
    flags = [text for text in others if text.startswith("-")]
    changes = [text for text in others if not text.startswith("-")]
    _check([text for text in changes if not text.lstrip("+~").startswith("hydra")], own)
    sweep_dir = places.outputs() / "hydra" / "${now:%Y-%m-%d}" / "${now:%H-%M-%S}"
    settings = [f"hydra.sweep.dir='{sweep_dir}'", "hydra.output_subdir=null", "hydra/job_logging=stdout"]
    if roots := places.conf_roots()[1:]:
        settings.append("hydra.searchpath=[" + ",".join(f"'file://{root}'" for root in roots) + "]")
    with tempfile.TemporaryDirectory() as scratch:
        codes = Path(scratch) / "codes"  # a file, as a launcher may run jobs in other processes

        @hydra.main(config_path=str(places.conf_roots()[0]), config_name="config", version_base="1.3")
        def job(_: DictConfig) -> int:
            from runners.run import one

            code = one(dict(cli.pairs(list(HydraConfig.get().overrides.task))) | own)
            with codes.open("a") as file:
                file.write(f"{code}\n")
            return code

        try:
            with (
                mock.patch.object(sys, "argv", [sys.argv[0], *flags, *settings, *changes]),
                mock.patch.dict(os.environ, {"HYDRA_FULL_ERROR": "1"}),  # errors reach us as exceptions
            ):
                job()
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(str(error)) from error
        return max(map(int, codes.read_text().split())) if codes.exists() else 0


def _check(changes: list[str], own: dict[str, str]) -> None:
    """Compose every combination; an endless range (``interval``) is left to its sweeper."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from runners.run import checked

    choices: list[list[tuple[str, str]]] = []
    for key, text in cli.pairs(changes):
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
