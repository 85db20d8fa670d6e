"""Imports what pyproject.toml asks for, all in one process: the proof that one lock serves all papers.

.venv/bin/python scripts/check_imports.py [extra ...]      default: the base and all extras
"""

import importlib
import importlib.util
import os
import re
import sys
import tempfile
import tomllib
import traceback
from pathlib import Path

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("TEXTGRAD_LOG_DIR", tempfile.gettempdir())
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Where the module is not the package's name with underscores, or where a part of it is what we build on.
MODULES = {
    "alpaca-eval": ["alpaca_eval.main"],
    "botorch": ["botorch", "botorch.sampling.pathwise"],
    "coco-experiment": ["cocoex"],
    "fcmaes": ["fcmaes.astro"],
    "hydra-core": ["hydra"],
    "hydra-joblib-launcher": ["hydra_plugins.hydra_joblib_launcher.joblib_launcher"],
    "hydra-submitit-launcher": ["hydra_plugins.hydra_submitit_launcher.submitit_launcher"],
    "import-linter": ["importlinter"],
    "open-spiel": ["pyspiel", "open_spiel.python.algorithms.cfr"],
    "pytest-xdist": ["xdist"],
    "pyyaml": ["yaml"],
    "scikit-fem": ["skfem"],
    "scikit-learn": ["sklearn"],
    "torch": ["torch", "torch.distributed.pipelining"],
    "torch-geometric": ["torch_geometric.nn", "torch_geometric.datasets"],
    "torchao": ["torchao.prototype.parq"],
    "transformers": ["transformers", "transformers.models.llama.modeling_llama"],
    "trl": ["trl.trainer.dpo_trainer", "trl.experimental.cpo"],
}
STUBS = {"pandas-stubs", "types-PyYAML"}


def main() -> int:
    """Return the number of packages that do not import."""
    project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"] | {"base": project["project"]["dependencies"]}
    bare = project["tool"]["reprise"]["no-deps"]
    chosen = sys.argv[1:] or [name for name in extras if name != "all"]
    asked = {re.split(r"[\[<>=!~; ]", line)[0] for name in chosen for line in extras[name]}
    failed = []
    for package in sorted(asked - STUBS):
        for module in MODULES.get(package, [package.replace("-", "_")]):
            try:
                importlib.import_module(module)
            except Exception:
                traceback.print_exc()
                failed.append(module)
    for package in (package for name in chosen for package in bare.get(name, [])):
        if importlib.util.find_spec(package.replace("-", "_")) is None:  # present is enough: it carries data
            failed.append(package)
    print(f"{len(asked)} packages imported" if not failed else f"do not import: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
