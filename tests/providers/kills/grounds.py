"""Where machines come from in these stories: each provider's own place, which tells what really exists there."""

import getpass
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.providers.kills.steps import BY_COMMAND, BY_HTTP
from tests.providers.kubernetes.cluster import Cluster
from tests.providers.kubernetes.kubelet import Kubelet
from tests.providers.slurm_cluster import slurm_cluster
from tests.providers.ssh_hosts import ssh_server
from tests.providers.vendors.runpod_server import RunPodServer
from tests.providers.vendors.vast_server import VastServer
from tests.providers.vendors.vendor_server import KEY, VendorServer

SIMPLETUNER = str(Path(sys.executable).parent / "simpletuner")
WAITS = """#!/bin/sh
until [ -e {gate} ]; do sleep 0.2; done
exec {program} "$@"
"""


class Ground:
    """`there` names all machines that exist, or may cost, at this moment."""

    def __init__(
        self,
        provider: str,
        there: Callable[[], list[str]],
        more_steps: tuple[str, ...] = (),
        *,
        secret: str = "",
        jobs: int = 2,
        boot_s: float = 120.0,
        environment: dict[str, str] | None = None,
        **settings: str,
    ) -> None:
        self.provider, self.there, self.settings, self.secret = provider, there, settings, secret
        self.more_steps = more_steps
        """Besides those of every provider."""
        self.jobs, self.boot_s, self.environment = jobs, boot_s, environment or {}


class Striker:
    """Kills the server while it waits for an answer, and notes where."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def strike(self, step: str) -> None:
        with (self._folder / "struck").open("a") as file:
            file.write(f"{step}\n")
        os.kill(int((self._folder / "pid").read_text()), signal.SIGKILL)


def worker_at(folder: Path) -> str:
    """Returns a program that is the worker, once the gate is open: a machine that booted before would not be `booting`."""
    file = folder / "worker"
    file.write_text(WAITS.format(gate=folder / "gate", program=SIMPLETUNER))
    file.chmod(0o755)
    return str(file)


@contextmanager
def ground_of(provider: str, folder: Path, striker: Striker) -> Iterator[Ground]:
    with ExitStack() as stack:
        made = MAKERS[provider](stack, folder, striker)
        if made is None:
            pytest.skip(f"apt-get cannot bring what {provider} needs to this machine")
        yield made


def _vendor(stack: ExitStack, server: VendorServer, provider: str, striker: Striker, command: str) -> Ground:
    stack.enter_context(server)
    server.boots = True
    for kind in ("create", "destroy"):
        server.faults[kind].extend(["lost request", "lost answer"])

    def lost(kind: str, fault: str) -> None:
        striker.strike(f"{kind} {'heard' if fault == 'lost request' else 'done'}")

    server.on_loss = lost
    return Ground(
        provider,
        lambda: [one.name for one in server.costing()],
        BY_HTTP,
        secret=KEY,
        image="worker:1",
        api_url=server.url,
        command=command,
    )


def _runpod(stack: ExitStack, folder: Path, striker: Striker) -> Ground:
    command = f"exec {worker_at(folder)} worker --work-dir {folder}/work-$SIMPLETUNER_WORKER_NAME"
    return _vendor(stack, RunPodServer(), "runpod", striker, command)


def _vast(stack: ExitStack, folder: Path, striker: Striker) -> Ground:
    command = f"{worker_at(folder)} worker --work-dir {folder}/work-$CONTAINER_ID"
    return _vendor(stack, VastServer(), "vast", striker, command)


class LosingCluster(Cluster):
    """Its answers, and what was asked of it, are lost when the one that asks dies."""

    def __init__(self, folder: Path, striker: Striker) -> None:
        super().__init__(folder)
        self._striker = striker
        self._losses = {what: deque(("heard", "done")) for what in ("create", "token", "destroy")}

    def answer(self, method: str, target: str, headers: Any, body: bytes, user: str) -> tuple[int, Any]:
        what = self._what(method, target)
        loss = self._losses[what].popleft() if what and self._losses[what] else ""
        answer = super().answer(method, target, headers, body, user) if loss != "heard" else (0, None)
        if loss:
            self._striker.strike(f"{what} {loss}")
            raise ConnectionAbortedError
        return answer

    @staticmethod
    def _what(method: str, target: str) -> str:
        if method == "DELETE":
            return "destroy"
        if method != "POST" or "dryRun" in target:
            return ""
        return "token" if "/secrets" in target else "create"


def _kubernetes(stack: ExitStack, folder: Path, striker: Striker) -> Ground:
    for name in ("cluster", "node"):
        (folder / name).mkdir()
    cluster = LosingCluster(folder / "cluster", striker)
    stack.callback(cluster.close)
    stack.callback(Kubelet(cluster, folder / "node").close)
    return Ground(
        "kubernetes",
        lambda: sorted({*cluster.objects["jobs"], *cluster.objects["secrets"]}),
        (*BY_HTTP, "token heard", "token done"),
        secret=cluster.kubeconfig(),
        # A Job whose Secret was never made does not boot, and keeps its place until its time is over.
        jobs=4,
        boot_s=25.0,
        image="worker:1",
        command=worker_at(folder),
    )


def _ssh(stack: ExitStack, folder: Path, striker: Striker) -> Ground | None:
    hosts = []
    for name in ("one", "two"):
        (folder / name).mkdir()
        host = stack.enter_context(ssh_server(folder / name))
        if host is None:
            return None
        hosts.append(host)
    (hosts[1].folder / "key.pub").write_text((hosts[0].folder / "key.pub").read_text())
    return Ground(
        "ssh",
        lambda: [str(host.place) for host in hosts if (host.place / "machine").is_symlink()],
        BY_COMMAND,
        secret=hosts[0].key,
        hosts=",".join(host.address for host in hosts),
        known_hosts="".join(host.known_hosts for host in hosts),
        config="none",
        command=worker_at(folder),
    )


def _slurm(stack: ExitStack, folder: Path, striker: Striker) -> Ground | None:
    (folder / "slurm").mkdir()
    cluster = stack.enter_context(slurm_cluster(folder / "slurm"))
    if cluster is None:
        return None
    needed = {name: cluster.environment[name] for name in ("PATH", "LD_LIBRARY_PATH")}
    return Ground(
        "slurm",
        cluster.jobs,
        BY_COMMAND,
        environment={**needed, "USER": getpass.getuser()},
        config=str(cluster.config),
        command=worker_at(folder),
        log_dir=str(cluster.folder),
    )


def _process(stack: ExitStack, folder: Path, striker: Striker) -> Ground:
    place = folder / "server" / "machines" / "process"
    return Ground("process", lambda: [one.name for one in place.iterdir()] if place.is_dir() else [])


MAKERS: dict[str, Callable[[ExitStack, Path, Striker], Ground | None]] = {
    "runpod": _runpod,
    "vast": _vast,
    "kubernetes": _kubernetes,
    "ssh": _ssh,
    "slurm": _slurm,
    "process": _process,
}
