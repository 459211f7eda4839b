"""Machines that are jobs of a real Slurm: asked for, listed, cancelled, and a whole training from a pool."""

import asyncio
import getpass
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.providers.contract import (
    MachineOrder,
    ProviderRefused,
    ProviderSurroundings,
    ProviderUnsure,
)
from simpletuner_fleet.providers.slurm import KILL_AFTER_S, SlurmProvider
from tests.core.provisioning.provisioning_kit import a_pool
from tests.e2e.jobs.test_stopping import trains
from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.e2e.storage.test_checkpoints import demo
from tests.providers.slurm_cluster import SlurmCluster, slurm_cluster
from tests.stop_watch import StopWatch

LONG_S = 90.0
PROGRAM = str(Path(sys.executable).parent / "simpletuner")
NOBODY = {"SIMPLETUNER_ORCHESTRATOR_URL": "http://127.0.0.1:9", "SIMPLETUNER_WORKER_TOKEN": "jt_one'two"}
UNUSED = httpx2.AsyncClient()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as made:
        if made is None:
            pytest.skip("apt-get cannot bring slurmctld, slurmd and munge to this machine")
        yield made


def provider_of(
    cluster: SlurmCluster, environment: dict[str, str] | None = None, **settings: str
) -> SlurmProvider:
    given = {"config": str(cluster.config), "command": PROGRAM, "log_dir": str(cluster.folder), **settings}
    return SlurmProvider(
        ProviderSurroundings(
            pool=a_pool(provider="slurm", settings=given),
            key=None,
            folder=cluster.folder,
            environment=environment or cluster.environment,
            http=UNUSED,
        )
    )


async def becomes(holds: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, holds, what, LONG_S)


def test_what_would_be_run_or_ignored_unseen_is_refused() -> None:
    def refused(**request: Any) -> str:
        pool = a_pool(provider="slurm", **request)
        with pytest.raises(Invalid) as caught:
            SlurmProvider(
                ProviderSurroundings(pool=pool, key=None, folder=Path("/x"), environment={}, http=UNUSED)
            )
        return caught.value.detail

    assert "path of a program" in refused(settings={"command": "true; rm"})
    assert "absolute" in refused(settings={"log_dir": "logs"})
    assert "no setting nodes" in refused(settings={"nodes": "2"})
    assert "takes no secret" in refused(secret="key")


async def test_a_machine_is_one_job_found_by_anybody_and_asked_before_it_is_ended(
    cluster: SlurmCluster,
) -> None:
    provider = provider_of(cluster, time="10", constraint="fast", price="0.5")
    (offer,) = await provider.offers()
    assert (offer.hourly_micros, offer.gpus) == (500_000, 0)
    order = MachineOrder(name="stf-f1-m1", offer=offer, environment=NOBODY)
    created = await provider.create(order)
    other = provider_of(cluster)
    (listed,) = await other.machines()
    assert (listed.provider_id, listed.name, listed.runs) == (created.provider_id, "stf-f1-m1", True)
    shown = cluster.says("scontrol", "show", "job", created.provider_id)
    assert "TimeLimit=00:10:00" in shown
    assert "Features=fast" in shown
    assert "Requeue=0" in shown
    assert "jt_one" not in shown
    log = cluster.folder / f"{created.provider_id}.log"
    await becomes(lambda: log.exists() and "does not answer" in log.read_text(), "its worker runs")
    assert "does not answer" in await other.boot_log(created.provider_id)
    work = Path(os.environ.get("TMPDIR", "/tmp")) / "stf-f1-m1"
    assert work.exists()
    await other.destroy(created.provider_id)
    await becomes(lambda: "stf-f1-m1" not in cluster.jobs(), "its job ends")
    assert not work.exists()
    ended = cluster.says("scontrol", "show", "job", created.provider_id)
    assert "JobState=FAILED" in ended, "its worker was asked, and the script ended by itself"
    await other.destroy(created.provider_id)


async def test_one_that_waits_in_slurms_own_queue_is_listed_and_cancelled(cluster: SlurmCluster) -> None:
    provider = provider_of(cluster, cpus="4")
    (offer,) = await provider.offers()
    names = ("stf-f1-m2", "stf-f1-m3")
    made = [await provider.create(MachineOrder(name=n, offer=offer, environment=NOBODY)) for n in names]
    assert {one.name for one in await provider.machines()} == set(names)
    assert all(one.runs for one in await provider.machines())
    await provider.destroy(made[1].provider_id)
    await becomes(lambda: cluster.jobs() == ["stf-f1-m2"], "the one that waits is gone")
    log = cluster.folder / f"{made[0].provider_id}.log"
    await becomes(lambda: log.exists() and "does not answer" in log.read_text(), "the other's worker runs")
    await provider.destroy(made[0].provider_id)
    await becomes(lambda: cluster.jobs() == [], "the other ends, too")


AS_NOBODY = """#!/bin/sh
exec setpriv --reuid=65534 --clear-groups --inh-caps=+dac_read_search --ambient-caps=+dac_read_search {program} "$@"
"""
LOST_ONCE = """#!/bin/sh
if mkdir {folder}/lost 2>/dev/null; then
    echo "scancel: error: Kill job error: Socket timed out on send/recv operation" >&2
    exit 1
fi
exec {program} "$@"
"""


def behind(cluster: SlurmCluster, name: str, text: str, folder: Path) -> dict[str, str]:
    """Returns an environment in which one of Slurm's commands is called by a script."""
    program = shutil.which(name, path=cluster.environment["PATH"])
    (folder / name).write_text(text.format(program=program, folder=folder))
    (folder / name).chmod(0o755)
    return {**cluster.environment, "PATH": f"{folder}{os.pathsep}{cluster.environment['PATH']}"}


@pytest.mark.skipif(os.getuid() != 0, reason="whoever runs this would need to be somebody else, too")
async def test_a_machine_in_a_partition_that_slurm_hides_is_listed(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """Slurm shows root everything; all others see such a job only if they ask for all."""
    environment = behind(cluster, "squeue", AS_NOBODY, tmp_path)
    provider = provider_of(cluster, environment, partition="hidden")
    (offer,) = await provider.offers()
    created = await provider.create(MachineOrder(name="stf-f1-m6", offer=offer, environment=NOBODY))
    try:
        assert [one.provider_id for one in await provider.machines()] == [created.provider_id]
    finally:
        cluster.says("scancel", "--full", created.provider_id)
        await becomes(lambda: cluster.jobs() == [], "its job ends")


async def test_a_worker_whose_notice_was_lost_is_given_it_again(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    provider = provider_of(cluster, behind(cluster, "scancel", LOST_ONCE, tmp_path))
    (offer,) = await provider.offers()
    created = await provider.create(MachineOrder(name="stf-f1-m7", offer=offer, environment=NOBODY))
    log = cluster.folder / f"{created.provider_id}.log"
    await becomes(lambda: log.exists() and "does not answer" in log.read_text(), "its worker runs")
    with pytest.raises(ProviderUnsure, match="timed out"):
        await provider.destroy(created.provider_id)
    await provider.destroy(created.provider_id)
    with StopWatch() as watch:
        await becomes(lambda: cluster.jobs() == [], "its job ends")
        assert watch.elapsed_s < KILL_AFTER_S / 2


async def test_what_slurm_says_no_to_was_not_made_and_what_it_cannot_answer_is_unsure(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    provider = provider_of(cluster, partition="none")
    with pytest.raises(ProviderRefused, match="invalid partition"):
        await provider.offers()
    (offer,) = await provider_of(cluster).offers()
    order = MachineOrder(name="stf-f1-m4", offer=offer, environment=NOBODY)
    with pytest.raises(ProviderRefused, match="invalid partition"):
        await provider.create(order)
    nowhere = tmp_path / "slurm.conf"
    text = cluster.config.read_text()
    nowhere.write_text(text.replace("SlurmctldPort=", "SlurmctldPort=1\n#") + "MessageTimeout=2\n")
    lost = provider_of(cluster, config=str(nowhere))
    with pytest.raises(ProviderUnsure):
        await lost.machines()
    assert cluster.jobs() == []


@contextmanager
def served(cluster: SlurmCluster, folder: Path, trainer: str) -> Iterator[World]:
    """A server beside the cluster, with a pool of its machines."""
    world = World(folder)
    world.environment |= {
        **{name: cluster.environment[name] for name in ("PATH", "LD_LIBRARY_PATH")},
        "USER": getpass.getuser(),
    }
    given = {"config": str(cluster.config), "command": PROGRAM, "log_dir": str(cluster.folder), "time": "30"}
    settings = [word for name, value in given.items() for word in ("--setting", f"{name}={value}")]
    try:
        world.start_server()
        saved = world.cli(
            *("pools", "set", "cluster", "--provider", "slurm", "--trainer", trainer, "--idle", "0"),
            # One that is given back counts until Slurm has not listed it for half a minute.
            *("--max-machines", "2"),
            *settings,
        )
        assert saved.returncode == 0, saved.stderr
        yield world
    finally:
        world.close()


def test_a_job_brings_a_slurm_machine_trains_there_and_it_goes(cluster: SlurmCluster, tmp_path: Path) -> None:
    with served(cluster, tmp_path, "command") as world:
        offers = world.cli("offers", "cluster", "-o", "json")
        assert json.loads(offers.stdout)["items"][0]["eligible"] is True, offers.stderr
        job_id = world.submit(world.command("true", resources={"gpus": 0}))
        world.becomes(job_id, "completed", LONG_S)
        wait_until(lambda: cluster.jobs() == [], "the ephemeral worker ends its allocation", LONG_S)
        (machine,) = world.get("/api/machines?gone=true")["machines"]
        assert machine["provider_id"].isdigit()


def allocation_of(world: World, job_id: str) -> str:
    """Waits until the job trains, and returns the id of the allocation that it does so in."""
    trains(world, job_id)
    worker_id = world.attempts(job_id)[-1]["worker_id"]
    machines = world.get("/api/machines")["machines"]
    return next(str(one["provider_id"]) for one in machines if one["worker_id"] == worker_id)


LONG_TRAINING = {
    **demo(checkpointing_steps=0, max_train_steps=5000, demo_step_delay_s=0.05),
    "resources": {"gpus": 0},
}


def check_given_back(cluster: SlurmCluster, world: World, job_id: str, first: str) -> None:
    """The job is in another allocation, goes on from its checkpoint, and is not charged."""
    wait_until(lambda: len(world.attempts(job_id)) == 2, "the next allocation has it", LONG_S)
    assert allocation_of(world, job_id) != first
    wait_until(lambda: len(cluster.jobs()) == 1, "the allocation before is gone", LONG_S)
    before, after = world.attempts(job_id)
    assert (before["outcome"], before["reason"]) == ("released", "interrupted")
    assert after["resumed_from_step"] > 0
    job = world.job(job_id)
    assert (job["losses"], job["failures"], job["interruptions"]) == (0, 0, 1)
    world.post(f"/api/jobs/{job_id}/cancel")
    wait_until(lambda: cluster.jobs() == [], "the last allocation ends", LONG_S)


@pytest.mark.timeout(400)
def test_an_allocation_that_ends_gives_its_job_back_with_a_checkpoint(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """Its end is brought near, so that Slurm gives its own notice when it next looks at its clock: every half minute."""
    with served(cluster, tmp_path, "demo") as world:
        job_id = world.submit(LONG_TRAINING)
        first = allocation_of(world, job_id)
        cluster.says("scontrol", "update", f"JobId={first}", "EndTime=now+110seconds")
        check_given_back(cluster, world, job_id, first)
        assert "taken away in 108 s, says slurm" in (cluster.folder / f"{first}.log").read_text()


@pytest.mark.timeout(400)
def test_an_allocation_that_is_requeued_gives_its_job_back_with_a_checkpoint(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    with served(cluster, tmp_path, "demo") as world:
        job_id = world.submit(LONG_TRAINING)
        first = allocation_of(world, job_id)
        cluster.says("scontrol", "update", f"JobId={first}", "Requeue=1")
        cluster.says("scontrol", "requeue", first)
        check_given_back(cluster, world, job_id, first)
