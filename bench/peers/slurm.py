"""Slurm on loopback, where Debian's packages (slurmctld, slurmd, slurm-client, munge) are installed and we are root."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.programs import environment, started, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
# As quick as its settings make it; by default it looks at new batch jobs three seconds later.
CONF = """
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={controller_port}
SlurmdPort={daemon_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=bench Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def installed() -> bool:
    return os.geteuid() == 0 and all(shutil.which(name) for name in PROGRAMS)


class Slurm:
    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._env = env

    def submit(self, command: list[str]) -> None:
        self._run("sbatch", "--quiet", "--output=/dev/null", "--chdir=/", f"--wrap=exec {' '.join(command)}")

    def idle(self) -> bool:
        answer = subprocess.run(
            ["sinfo", "-h", "-o", "%T"],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return answer.stdout.strip() == "idle"

    def _run(self, *argv: str) -> None:
        subprocess.run(argv, env=self._env, check=True, timeout=30)


@contextmanager
def running_slurm(parent: Path) -> Iterator[Slurm]:
    folder = parent / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    conf = folder / "slurm.conf"
    host = socket.gethostname().split(".")[0]
    ports = _free_ports(2)
    conf.write_text(
        CONF.format(
            folder=folder, host=host, cpus=os.cpu_count(), controller_port=ports[0], daemon_port=ports[1]
        )
    )
    env = environment(folder, SLURM_CONF=str(conf))
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munged += [
        f"--pid-file={folder}/munge.pid",
        f"--log-file={folder}/munge.log",
        f"--seed-file={folder}/seed",
    ]
    log = folder / "programs.log"
    with (
        started(munged, env, log),
        started(["slurmctld", "-D", "-f", str(conf)], env, log),
        started(["slurmd", "-D", "-f", str(conf), "-N", host], env, log),
    ):
        slurm = Slurm(folder, env)
        wait_until(slurm.idle, "Slurm starts")
        yield slurm


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
