"""One rank of a distributed run (started by torch elastic, see ``runners.group``). It never starts a sweep."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from runners import provenance
from runners.group import die_with_parent


def main(spec_file: str) -> int:
    """Examine as one rank; 0 if the run has a result, 1 if it failed (the group then restarts or ends)."""
    die_with_parent()
    spec: dict[str, Any] = json.loads(Path(spec_file).read_bytes())
    folder = Path(spec["folder"])
    if (folder / "result.json").exists():  # a restart after the last rank had finished
        return 0
    if (folder / "failure.json").exists():  # a method's own failure: restarting cannot mend it
        return 1
    provenance.limit_threads(1)
    import torch
    import torch.distributed as dist

    rank, ranks, local = (int(os.environ[key]) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    config = spec["config"]
    cuda = str(config.get("device") or "cpu").startswith("cuda")
    if cuda:
        torch.cuda.set_device(local)
        config = config | {"device": f"cuda:{local}"}
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    from runners.execute import Executor

    executor = Executor(Path(spec["root"]), tracker=spec["tracker"] if rank == 0 else None, progress=False)
    executor.progress_file = Path(spec["progress_file"]) if spec["progress_file"] and rank == 0 else None
    outcome = executor.examine(
        config,
        spec["run_id"],
        folder,
        spec["fingerprint"],
        spec["labels"],
        deadline_seconds=spec["deadline_seconds"],
        rank=rank,
        ranks=ranks,
    )
    if ranks > 1:
        dist.destroy_process_group()
    return 0 if outcome.status in ("done", "diverged") else 1


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a peer that hangs in a collective must not keep this one from ending
