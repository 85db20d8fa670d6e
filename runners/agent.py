"""The torch-elastic agent of one group on one node (started by ``runners.group``): it starts and restarts ranks."""

from __future__ import annotations

import os
import sys

from runners.group import die_with_parent, pass_signals_by


def main(parent: str, *arguments: str) -> None:
    """Run torch elastic with ``arguments``; ranks are told this process's id as their last argument."""
    die_with_parent(int(parent))
    pass_signals_by()
    # Else torch keeps one store for all restarts, and new ranks may read the addresses of dead ones there.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    from torch.distributed.run import main as torchrun

    torchrun([*arguments, str(os.getpid())])


if __name__ == "__main__":
    main(*sys.argv[1:])
