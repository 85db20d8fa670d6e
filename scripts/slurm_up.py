"""Starts a one-node Slurm on this machine, for tests (Debian packages ``slurm-wlm`` and ``munge``; needs root).

usage: python scripts/slurm_up.py [stop | restart | restart-controller]

Not a way to run a cluster: no accounting, everything as root on 127.0.0.1.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

STATE = Path("/var/lib/reprise-slurm")
FILE = Path("/etc/slurm/slurm.conf")
CONFIG = """ClusterName=reprise
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=cred_expire=5
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmUser=root
SlurmdUser=root
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
StateSaveLocation={state}/ctld
SlurmdSpoolDir={state}/d
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
KillWait=20
InactiveLimit=0
MinJobAge=60
SchedulerParameters=sched_interval=1,requeue_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def start() -> None:
    """Write the configuration, start munged, slurmctld and slurmd, and wait until the node is idle."""
    for program in ("munged", "slurmctld", "slurmd", "sinfo"):
        if shutil.which(program) is None and not Path(f"/usr/sbin/{program}").exists():
            sys.exit(f"{program} is missing: apt-get install slurm-wlm munge")
    host = socket.gethostname().split(".")[0]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    for folder in (STATE, STATE / "ctld", STATE / "d"):
        folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG.format(host=host, state=STATE, cpus=os.cpu_count(), memory=int(memory * 0.95))
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(config)
    key = Path("/etc/munge/munge.key")
    if not key.exists():
        key.write_bytes(os.urandom(1024))
    shutil.chown(key, "munge", "munge")
    key.chmod(0o400)
    run = Path("/run/munge")
    run.mkdir(exist_ok=True)
    shutil.chown(run, "munge", "munge")
    if subprocess.run(["pgrep", "-x", "munged"], capture_output=True).returncode:
        subprocess.run(["runuser", "-u", "munge", "--", "/usr/sbin/munged"], check=True)
    for program in ("slurmctld", "slurmd"):
        if subprocess.run(["pgrep", "-x", program], capture_output=True).returncode:
            subprocess.run([f"/usr/sbin/{program}"], check=True)
    for _ in range(120):
        state = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True).stdout.strip()
        if state in ("idle", "mixed", "allocated"):
            print(f"slurm is up: {host} {state}")
            return
        if state.startswith(("down", "drain")):
            subprocess.run(["scontrol", "update", f"nodename={host}", "state=resume"], check=False)
        time.sleep(0.5)
    sys.exit(f"slurm did not come up (state {state!r}); logs in {STATE}")


def stop(programs: tuple[str, ...] = ("slurmd", "slurmctld")) -> None:
    """End daemons and wait until they have ended."""
    for program in programs:
        file = STATE / f"{program}.pid"
        pid = int(file.read_text()) if file.exists() else 0
        if pid and Path(f"/proc/{pid}/comm").exists():
            os.kill(pid, signal.SIGTERM)
            for _ in range(200):
                if not Path(f"/proc/{pid}/comm").exists():
                    break
                time.sleep(0.1)


def main(command: str = "start") -> None:
    """The command line."""
    if command not in ("start", "stop", "restart", "restart-controller"):
        sys.exit((__doc__ or "").split("\n\n")[1])
    if FILE.exists() and "ClusterName=reprise\n" not in FILE.read_text():
        sys.exit(f"{FILE} is of another cluster: it stays as it is")
    if command in ("stop", "restart"):
        stop()
    if command == "restart-controller":
        stop(("slurmctld",))
    if command != "stop":
        start()


if __name__ == "__main__":
    main(*sys.argv[1:2])
