"""One rank of a run in processes of its own (see ``runners.group``). It never starts a sweep."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from runners import provenance
from runners.group import die_with_parent, pass_signals_by


def main(spec_file: str, parent: str) -> int:
    """Examine as one rank; 0 if no restart can add anything, 1 if elastic should end or restart the group."""
    die_with_parent(int(parent))
    pass_signals_by()
    spec: dict[str, Any] = json.loads(Path(spec_file).read_bytes())
    folder = Path(spec["folder"])
    # A restart after the run had ended: with a result, or with a failure of its own, which comes again.
    if (folder / "result.json").exists() or (folder / "failure.json").exists():
        return 0
    provenance.limit_threads(1)
    rank, ranks, local = (int(os.environ[key]) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    config = spec["config"]
    cuda = str(config.get("device") or "cpu").startswith("cuda")
    if cuda:  # the run sees its own GPUs only, numbered from 0
        config = config | {"device": f"cuda:{local}" if ranks > 1 else "cuda"}
    if ranks > 1:
        import torch
        import torch.distributed as dist

        if cuda:
            torch.cuda.set_device(local)
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    from runners.execute import Executor

    executor = Executor(Path(spec["root"]), tracker=spec["tracker"] if rank == 0 else None, progress=False)
    executor.progress_file = Path(spec["progress_file"]) if spec["progress_file"] and rank == 0 else None
    outcome = executor.examine(
        config,
        spec["run_id"],
        folder,
        spec["fingerprint"],
        spec["labels"],
        deadline_seconds=max(1.0, spec["deadline"] - time.time()) if spec["deadline"] else None,
        rank=rank,
        ranks=ranks,
    )
    if ranks > 1 and outcome.status == "done":
        dist.destroy_process_group()
    return 0 if outcome.status in ("done", "diverged", "interrupted") else 1


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a peer that hangs in a collective must not keep this one from ending
