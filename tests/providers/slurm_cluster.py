"""A real Slurm of one node on this machine, from Debian's packages, which are unpacked and not installed."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devtools.ports import free_port
from tests.docs.debian_tools import unpacked
from tests.e2e.processes import SYSTEMS_PATH, wait_until

PACKAGES = ("munge", "slurmctld", "slurmd", "slurm-client")
WITHIN_S = 90.0
CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 Feature=fast State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=60 State=UP
PartitionName=hidden Nodes=ALL Hidden=YES MaxTime=60 State=UP
"""


class SlurmCluster:
    def __init__(self, files: Path, folder: Path) -> None:
        self.folder = folder
        self._programs = files / "usr" / "sbin"
        (plugins,) = files.glob("usr/lib/*/slurm-wlm")
        self.config = folder / "slurm.conf"
        self.environment = {
            "PATH": f"{files / 'usr' / 'bin'}{os.pathsep}{SYSTEMS_PATH}",
            "LD_LIBRARY_PATH": f"{plugins.parent}{os.pathsep}{plugins}",
            "HOME": str(folder),
            "USER": getpass.getuser(),
        }
        self._host = socket.gethostname().partition(".")[0]
        for name in ("state", "spool"):
            (folder / name).mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        self.config.write_text(
            CONFIG.format(
                host=self._host,
                controller_port=free_port(),
                node_port=free_port(),
                folder=folder,
                user=getpass.getuser(),
                plugins=plugins,
            )
        )
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        names = ("socket", "key-file", "pid-file", "log-file", "seed-file")
        places = [f"--{name}={self.folder}/munge.{name.partition('-')[0]}" for name in names]
        self._begin("munged", "--foreground", "--force", *places)
        wait_until(lambda: (self.folder / "munge.socket").exists(), "munged listens", WITHIN_S)
        self._begin("slurmctld-wlm", "-D", "-f", str(self.config))
        stepd = str(self._programs / "slurmstepd-wlm")
        self._begin("slurmd-wlm", "-D", "-f", str(self.config), "-d", stepd, "-N", self._host)
        wait_until(lambda: self.says("sinfo", "-h", "-o", "%T") == "idle", "Slurm's node is idle", WITHIN_S)

    def _begin(self, program: str, *arguments: str) -> None:
        with (self.folder / f"{program}.out").open("ab") as out:
            self._running.append(
                subprocess.Popen(
                    [self._programs / program, *arguments],
                    env={**self.environment, "SLURM_CONF": str(self.config)},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
            )

    def says(self, *command: str) -> str:
        """What one of Slurm's commands prints; nothing where it fails."""
        path = shutil.which(command[0], path=self.environment["PATH"])
        assert path, command
        environment = {**self.environment, "SLURM_CONF": str(self.config)}
        done = subprocess.run(
            [path, *command[1:]], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    def jobs(self) -> list[str]:
        return self.says("squeue", "--all", "-h", "-o", "%j").splitlines()

    def close(self) -> None:
        self.says("scancel", "--me", "--full")
        until = time.monotonic() + 30.0
        while self.jobs() and time.monotonic() < until:
            time.sleep(0.2)
        for process in reversed(self._running):
            process.terminate()
        for process in self._running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster | None]:
    """Gives None where apt cannot bring the packages."""
    files = unpacked("slurm", PACKAGES)
    if files is None:
        yield None
        return
    cluster = SlurmCluster(files, folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
