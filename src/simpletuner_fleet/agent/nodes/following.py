"""Implements `simpletuner worker --node-of`: this machine follows the first node of its worker until that leaves."""

import asyncio
import logging
import signal
import socket

from simpletuner_fleet import __version__
from simpletuner_fleet.agent.attempts.retention import with_disk_room
from simpletuner_fleet.agent.data.datasets import Datasets
from simpletuner_fleet.agent.departure import Departure
from simpletuner_fleet.agent.gpus.gpu_probe import GpuProbe
from simpletuner_fleet.agent.guard.runner import Runner
from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.interruptions.firmware import signaller
from simpletuner_fleet.agent.interruptions.leaving import SIGNAL
from simpletuner_fleet.agent.interruptions.remembered import RememberedEnd
from simpletuner_fleet.agent.interruptions.watching import watch_for_end
from simpletuner_fleet.agent.isolation.cgroups import choose_cgroups
from simpletuner_fleet.agent.isolation.spares import Spares
from simpletuner_fleet.agent.isolation.undumpable import become_undumpable
from simpletuner_fleet.agent.isolation.walls import choose_walls
from simpletuner_fleet.agent.machine_facts import MachineFacts, gpu_report
from simpletuner_fleet.agent.memory import few_threads, stay_small
from simpletuner_fleet.agent.nodes.follower import SAMPLE_EVERY_S, FirstNode, Follower, leave_if_alone
from simpletuner_fleet.agent.nodes.messages import JoinNode
from simpletuner_fleet.agent.nodes.node_connection import kept_secret, tls_context
from simpletuner_fleet.agent.nodes.ranks import NodeParts
from simpletuner_fleet.agent.program import (
    WorkerSettings,
    data_cache,
    jobs_at_once,
    look_around,
    surroundings,
    work_folder,
)
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.trainers.installed import trainers_for

log = logging.getLogger(__name__)


async def run_follower(settings: WorkerSettings, environment: dict[str, str]) -> Departure:
    """Runs until the node leaves; raises a FleetError for what is wrong from the start."""
    assert settings.nodes.first is not None
    stay_small()
    few_threads()
    become_undumpable()
    cgroups = await asyncio.to_thread(choose_cgroups, settings.limits)
    probe = GpuProbe(environment)
    with StateDir.open(work_folder(settings)) as state:
        await with_disk_room(state, settings.keep, lambda: None, waits=True)
        nodes = settings.nodes
        context = tls_context(kept_secret(nodes.secret, nodes.secret_file, state.path), is_first=False)
        host, port = settings.nodes.first
        first = FirstNode(host, port, context)
        try:
            async with data_cache(settings, state) as cache:
                trainers = await asyncio.to_thread(trainers_for, settings.trainer_python, environment)
                machine = await look_around(settings, state, probe, trainers)
                about = surroundings(settings, environment, state.path, cache.folder, trainers.trainer_python)
                jobs = jobs_at_once(settings, len(machine.gpus))
                walls = await with_disk_room(
                    state, settings.keep, lambda: choose_walls(settings.isolation, about, state.path, jobs)
                )
                await asyncio.to_thread(cache.guard, walls.kind == "user")
                follower = Follower(first, lambda holds: _introduction(machine, holds))
                async with Runner(key=state.shim_key(), walls=Spares(walls, cgroups)) as runner:
                    data = Datasets(cache, first)
                    ranks = NodeParts(state, runner, trainers, first, data, walls, cgroups, follower.tell)
                    follower.ranks = ranks
                    await ranks.clean_up()
                    try:
                        await _follow(follower, settings, probe, signaller(environment), state)
                    finally:
                        await ranks.forget_all()
        finally:
            await probe.close()
    return Departure("the worker of this node has left")


def _introduction(machine: MachineFacts, holds: list[Turn]) -> JoinNode:
    return JoinNode(
        version=__version__,
        name=socket.gethostname(),
        home=machine.home,
        gpus=[gpu_report(gpu) for gpu in machine.gpus],
        trainers=list(machine.trainers),
        holds=holds,
    )


async def _follow(
    follower: Follower, settings: WorkerSettings, probe: GpuProbe, signalled_by: str | None, state: StateDir
) -> None:
    loop, source = asyncio.get_running_loop(), signalled_by or SIGNAL
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, follower.machine_ends, source, settings.shutdown_grace_s)
    loop.add_signal_handler(signal.SIGUSR1, follower.machine_ends, source, settings.end_notice_s)
    beside = [
        asyncio.create_task(_sample(follower, probe)),
        asyncio.create_task(leave_if_alone(follower, settings.leave_after_s)),
        asyncio.create_task(
            watch_for_end(
                settings.notices,
                RememberedEnd(state.path),
                lambda seen: follower.machine_ends(seen.source, seen.in_s),
            )
        ),
    ]
    try:
        await follower.follow()
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def _sample(follower: Follower, probe: GpuProbe) -> None:
    while probe.inventory.source == "nvml":
        asked_at = boottime()
        follower.samples = await probe.sample()
        follower.samples_read_at = boottime()
        await asyncio.sleep(max(0.0, asked_at + SAMPLE_EVERY_S - boottime()))
