"""Whole trainings on machines that a job brought: a host by a real sshd, and a pod of our small Kubernetes."""

import sys
from pathlib import Path

import pytest

from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.providers.kubernetes.cluster import cluster_at
from tests.providers.kubernetes.kubelet import Kubelet
from tests.providers.ssh_hosts import ssh_server

LONG_S = 100.0
PROGRAM = str(Path(sys.executable).parent / "simpletuner")


def make_pool(world: World, name: str, provider: str, secret: str, **settings: str) -> None:
    file = world.home / "key"
    file.write_text(secret)
    stored = world.cli("secrets", "set", name, "--from-file", str(file))
    assert stored.returncode == 0, stored.stderr
    given = [word for key, value in settings.items() for word in ("--setting", f"{key}={value}")]
    chosen = ("--provider", provider, "--secret", name, "--trainer", "command", "--idle", "0")
    saved = world.cli("pools", "set", name, *chosen, *given)
    assert saved.returncode == 0, saved.stderr


def test_a_job_trains_on_a_host_and_another_in_a_pod_and_nothing_is_left_of_either(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in ("host", "cluster", "node"):
        (tmp_path / name).mkdir()
    with ssh_server(tmp_path / "host") as host, cluster_at(tmp_path / "cluster") as cluster:
        if host is None:
            pytest.skip("apt-get cannot bring openssh-server to this machine")
        kubelet = Kubelet(cluster, tmp_path / "node")
        try:
            world.start_server()
            reached = {"hosts": host.address, "known_hosts": host.known_hosts, "config": "none"}
            make_pool(world, "lab", "ssh", host.key, command=PROGRAM, **reached)
            make_pool(world, "pods", "kubernetes", cluster.kubeconfig(), command=PROGRAM, image="worker:1")
            needs = {"gpus": 0}
            jobs = {
                name: world.submit(world.command("true", resources=needs), worker_labels={"pool": name})
                for name in ("lab", "pods")
            }
            for job_id in jobs.values():
                world.becomes(job_id, "completed", LONG_S)
            brought = {one["pool"]: one for one in world.get("/api/machines?gone=true")["machines"]}
            assert brought["lab"]["provider_id"].startswith(f"{host.address}/stf-")
            assert brought["pods"]["provider_id"] == brought["pods"]["name"]
            wait_until(lambda: not (host.place / "machine").is_symlink(), "the host is free again", LONG_S)
            wait_until(
                lambda: not any(cluster.objects[kind] for kind in ("jobs", "pods", "secrets")),
                "no Job",
                LONG_S,
            )
        finally:
            world.close()
            kubelet.close()
