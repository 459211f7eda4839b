"""Runs the worker program: examines the machine, takes up what it held before, and runs the loops until it leaves."""

import asyncio
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet import __version__
from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.agent import Agent
from simpletuner_fleet.agent.attempts.attempts import ADOPT_GRACE_S, Attempts
from simpletuner_fleet.agent.attempts.retention import KeepLimits, with_disk_room
from simpletuner_fleet.agent.audit_memory import AuditMemory
from simpletuner_fleet.agent.data.data_cache import DataCache
from simpletuner_fleet.agent.data.datasets import Datasets
from simpletuner_fleet.agent.departure import Departure
from simpletuner_fleet.agent.gpus.gpu_probe import GpuProbe, Inventory, chosen_gpus, reported_labels
from simpletuner_fleet.agent.guard.runner import Runner
from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.inbox import Inbox, Phase
from simpletuner_fleet.agent.interruptions.firmware import signaller
from simpletuner_fleet.agent.interruptions.leaving import MachineEnding, release_grace_s, terminate
from simpletuner_fleet.agent.interruptions.remembered import RememberedEnd
from simpletuner_fleet.agent.interruptions.watching import NoticeSettings, watch_for_end
from simpletuner_fleet.agent.isolation.cgroups import JobLimits, choose_cgroups
from simpletuner_fleet.agent.isolation.places import KEPT_BY_SERVICES, JobPath
from simpletuner_fleet.agent.isolation.spares import Spares
from simpletuner_fleet.agent.isolation.undumpable import become_undumpable
from simpletuner_fleet.agent.isolation.walls import WallSurroundings, choose_walls
from simpletuner_fleet.agent.joining import is_for_joining, joined
from simpletuner_fleet.agent.loops.heartbeat_loop import heartbeat_loop
from simpletuner_fleet.agent.loops.stream_loop import stream_loop
from simpletuner_fleet.agent.machine_facts import MachineFacts
from simpletuner_fleet.agent.memory import few_threads, stay_small
from simpletuner_fleet.agent.nodes.host import NodeHost
from simpletuner_fleet.agent.nodes.leading import NodeSettings, other_nodes, speak_for, with_nodes
from simpletuner_fleet.agent.senders import AttemptEvents
from simpletuner_fleet.agent.ship.logs.log_stream import LogLimits
from simpletuner_fleet.agent.ship.spool import Spool
from simpletuner_fleet.agent.state_dir import StateDir, default_state_dir, write_whole
from simpletuner_fleet.agent.token_source import TokenSource
from simpletuner_fleet.agent.trainer_options import tell_options
from simpletuner_fleet.agent.wire import connecting
from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.bandwidth import Bandwidth
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.errors import Refused, Unreachable
from simpletuner_fleet.client.trust import Choices
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.worker_errors import NoSuchGpu
from simpletuner_fleet.protocol.messages import Goodbye
from simpletuner_fleet.trainers.environment import without_secrets
from simpletuner_fleet.trainers.installed import tell, trainers_for, version_label
from simpletuner_fleet.trainers.registry import Registry

log = logging.getLogger(__name__)

GIVE_UP_CONNECTING_S = 60.0
SHUTDOWN_GRACE_S = 20.0
END_NOTICE_S = 120.0
LEAVE_WITHIN_S = 5.0
GOODBYE_WITHIN_S = 3.0
RESTARTED_BY_SYSTEMD_S = 45.0
"""It starts an agent again after ten seconds, and a loaded machine takes its time. The lease rules meanwhile."""
FINISHING_TOLD_EVERY_S = 5.0
ISOLATION = "isolation"
"""The label that tells how jobs are separated here: what a job asks for, and what the worker's page shows."""
SERVERS_FOLDERS = ("SIMPLETUNER_HOME",)


class WorkerSettings(Struct, frozen=True, kw_only=True):
    url: str
    further_urls: tuple[str, ...] = ()
    """Where the same fleet has other orchestrators."""
    token: str | None
    token_file: Path | None
    name: str
    persistent: bool
    tls: Choices = Choices()
    gpus: str | None = None
    labels: dict[str, str] = {}
    work_dir: Path | None = None
    trainer_python: str | None = None
    price_micros: int | None = None
    """What an hour of one of its GPUs costs, in millionths of the fleet's currency."""
    max_jobs: int | None = None
    """None: as many as its GPUs allow; one where it leaves after that."""
    upload_limit_mbps: float | None = None
    data_cache_dir: Path | None = None
    data_cache_gb: float | None = None
    """None: most of what the disk has free, and 100 GB at most."""
    shutdown_grace_s: float = SHUTDOWN_GRACE_S
    """From SIGTERM until it must be gone."""
    end_notice_s: float = END_NOTICE_S
    """From SIGUSR1 until its machine is gone."""
    notices: NoticeSettings = NoticeSettings()
    max_log_mb: int = 1024
    keep: KeepLimits = KeepLimits()
    leave_after_s: float | None = None
    """Without an answer of the orchestrator; None stays for ever."""
    restarted_within_s: float | None = None
    """None: as long as the service manager takes for it, where one started the agent."""
    isolation: str = "auto"
    job_paths: tuple[JobPath, ...] = ()
    limits: JobLimits = JobLimits()
    nodes: NodeSettings = NodeSettings()

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url, *self.further_urls)


def adopted_within_s(settings: WorkerSettings, environment: Mapping[str, str]) -> float:
    """Returns how long trainers wait for the next agent.

    One that nobody starts again would only keep its jobs from others.
    """
    if settings.restarted_within_s is not None:
        return settings.restarted_within_s
    started = environment.get("SYSTEMD_EXEC_PID")
    is_service = started in (str(os.getpid()), str(os.getppid()))
    return RESTARTED_BY_SYSTEMD_S if is_service else ADOPT_GRACE_S


def jobs_at_once(settings: WorkerSettings, gpus: int) -> int:
    if settings.max_jobs is not None:
        return settings.max_jobs
    return max(1, gpus) if settings.persistent else 1


async def run_agent(
    settings: WorkerSettings, environment: dict[str, str], probe: GpuProbe | None = None
) -> Departure:
    """Runs until the worker leaves; raises TrustError or a FleetError for what is wrong from the start."""
    stay_small()
    few_threads()
    become_undumpable()
    # A token may be rotated while we start: SIGHUP must not end us before we listen to it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    folder = work_folder(settings)
    # Before anything is started: what this process starts belongs to the same group.
    cgroups = await asyncio.to_thread(choose_cgroups, settings.limits)
    log.info("control groups of jobs: %s", cgroups.sentence())
    with StateDir.open(folder) as state:
        waits = settings.persistent and settings.leave_after_s is None
        await with_disk_room(state, settings.keep, lambda: None, waits=waits)
        remembered = RememberedEnd(state.path)
        await _outlive(remembered)
        token = await token_source(settings, state)
        client = await connecting.client_for(
            settings.urls, settings.tls, lambda: token.token, connecting.keeper(state.path)
        )
        probe = probe or GpuProbe(environment)
        try:
            async with data_cache(settings, state) as cache:
                trainers = await asyncio.to_thread(trainers_for, settings.trainer_python, environment)
                machine = await look_around(settings, state, probe, trainers)
                own_gpus = len(machine.gpus)
                about = surroundings(settings, environment, state.path, cache.folder, trainers.trainer_python)
                jobs = jobs_at_once(settings, own_gpus)
                walls = await with_disk_room(
                    state, settings.keep, lambda: choose_walls(settings.isolation, about, state.path, jobs)
                )
                # As the same user a job could write into what its trainer's cache shows of it.
                await asyncio.to_thread(cache.guard, walls.kind == "user")
                labels = {**machine.labels, ISOLATION: walls.name, **cgroups.labels()}
                machine = replace(machine, labels=labels)
                inbox = Inbox(
                    persistent=settings.persistent,
                    max_jobs=jobs,
                    release_grace_s=release_grace_s(settings.shutdown_grace_s),
                )
                trust = connecting.shim_trust(settings.tls, state.path)
                bandwidth = Bandwidth(settings.upload_limit_mbps)
                log_limits = LogLimits.of(settings.max_log_mb * 1024 * 1024)
                data = Datasets(cache, client)

                async with (
                    Runner(key=state.shim_key(), walls=Spares(walls, cgroups)) as runner,
                    other_nodes(settings.nodes, state.path, client, machine) as nodes,
                ):
                    if nodes:
                        machine = with_nodes(machine, await nodes.gathered())

                    def make_attempts(events: AttemptEvents) -> Attempts:
                        return Attempts(
                            state,
                            runner,
                            trainers,
                            client,
                            trust,
                            bandwidth,
                            log_limits,
                            data,
                            events,
                            walls,
                            adopted_within_s(settings, environment),
                            cgroups,
                            nodes,
                        )

                    agent = Agent(
                        machine,
                        inbox,
                        client,
                        token,
                        Spool(state.spool_dir),
                        make_attempts,
                        AuditMemory(state.path / "audit_heads.jsonl"),
                    )
                    telling = asyncio.create_task(_tell_options(agent, trainers, client, state.path))
                    try:
                        return await _live(agent, probe, settings, remembered, signaller(environment), nodes)
                    finally:
                        telling.cancel()
        finally:
            await probe.close()
            await client.close()


async def _outlive(remembered: RememberedEnd) -> None:
    """Waits while the machine is about to be taken away: a worker would only take a job and lose it."""
    expected_s = remembered.expected_s()
    if expected_s:
        log.warning("this machine is to be taken away: the worker waits %.0f s whether it is", expected_s)
        await asyncio.sleep(expected_s)
        log.warning("it was not: the worker goes on")


async def token_source(settings: WorkerSettings, state: StateDir) -> TokenSource:
    """Returns where the token comes from. One for joining is exchanged, once, for one that stays in this folder."""
    kept = state.path / "worker_token"
    if not is_for_joining(settings.token):
        return TokenSource(settings.token, settings.token_file or kept)
    if not kept.exists():
        client = await connecting.client_for(settings.urls, settings.tls, lambda: settings.token or "")
        try:
            write_whole(kept, (await joined(client, state.home)).encode())
        finally:
            await client.close()
    return TokenSource(None, kept)


async def _tell_options(agent: Agent, trainers: Registry, client: OrchestratorClient, folder: Path) -> None:
    await agent.connected.wait()
    try:
        await tell_options(trainers, client, folder)
    except Exception:  # anybody's plug-in: a worker works without this
        log.exception("the options of the trainers could not be told")


def surroundings(
    settings: WorkerSettings, environment: dict[str, str], state: Path, cache: Path, trainer_python: str
) -> WallSurroundings:
    """Takes the `trainer_python` that is in use: one that nobody has named has to be seen by jobs, too."""
    home = environment.get("HOME") or str(Path.home())
    kept = [state, cache, Path(home) / ".simpletuner", Path(KEPT_BY_SERVICES)]
    kept += [Path(environment[name]) for name in SERVERS_FOLDERS if environment.get(name)]
    kept += [file for file in (settings.token_file, settings.nodes.secret_file) if file]
    return WallSurroundings(
        home=os.path.abspath(home),
        environment=without_secrets(environment),
        pythons=(trainer_python, sys.executable),
        grants=settings.job_paths,
        hidden=tuple(dict.fromkeys(str(path.expanduser().absolute()) for path in kept)),
    )


@asynccontextmanager
async def data_cache(settings: WorkerSettings, state: StateDir) -> AsyncIterator[DataCache]:
    limit = None if settings.data_cache_gb is None else int(settings.data_cache_gb * 1e9)
    folder = settings.data_cache_dir or state.path / "data-cache"
    cache = await asyncio.to_thread(DataCache.open, folder, limit)
    try:
        yield cache
    finally:
        cache.close()


async def look_around(
    settings: WorkerSettings, state: StateDir, probe: GpuProbe, registry: Registry
) -> MachineFacts:
    inventory, trainers = await asyncio.gather(probe.find(), asyncio.to_thread(registry.available))
    if not inventory.is_known and settings.nodes.are_several:
        log.warning(
            "waiting for the driver of the GPUs, without which this is no node: %s", inventory.problem
        )
        inventory = await probe.answered()
    version = await asyncio.to_thread(version_label, registry)
    saving = await asyncio.to_thread(registry.that_save_on_request, trainers)
    validating = await asyncio.to_thread(registry.that_validate_on_request, trainers)
    tell(registry, named=settings.trainer_python is not None)
    gpus = chosen_gpus(inventory, settings.gpus)
    return MachineFacts(
        name=settings.name,
        version=__version__,
        home=state.home,
        start=state.count_start(),
        gpus=gpus,
        trainers=tuple(trainers),
        saves_on_request=tuple(saving),
        validates_on_request=tuple(validating),
        labels={**reported_labels(gpus, known=inventory.is_known), **version, **settings.labels},
        tls=settings.tls.kind(settings.url),
        price_micros=settings.price_micros,
    )


async def _live(
    agent: Agent,
    probe: GpuProbe,
    settings: WorkerSettings,
    remembered: RememberedEnd,
    signalled_by: str | None,
    nodes: NodeHost | None,
) -> Departure:
    await _take_up(agent)
    ending = MachineEnding(agent, signalled_by, remembered)
    if nodes:
        speak_for(nodes, agent, ending)
    _listen_to_signals(agent, settings, ending)
    loops = [
        asyncio.create_task(stream_loop(agent, None if settings.persistent else GIVE_UP_CONNECTING_S)),
        asyncio.create_task(heartbeat_loop(agent)),
        asyncio.create_task(_deliver_once_known(agent)),
        asyncio.create_task(_sample_loop(agent, probe, settings)),
        asyncio.create_task(_tidy_loop(agent, settings.keep)),
        asyncio.create_task(_finishing_loop(agent)),
        asyncio.create_task(_leave_loop(agent, settings)),
        asyncio.create_task(watch_for_end(settings.notices, remembered, ending.cloud_says)),
    ]
    for loop in loops:
        loop.add_done_callback(lambda task: _loop_ended(agent, task))
    try:
        departure = await agent.departure
        log.info("leaving: %s", departure.reason)
        await _finish_work(agent)
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await agent.drop_work()
    if departure.code is None and agent.connected.is_set():
        await _say_goodbye(agent, departure)
    return departure


async def _finish_work(agent: Agent) -> None:
    try:
        async with asyncio.timeout(LEAVE_WITHIN_S):
            await agent.finish_tasks()
    except TimeoutError:
        log.warning("not everything could be finished; what is left is taken up at the next start")


async def _take_up(agent: Agent) -> None:
    """Takes up reports that were not delivered, then attempts that were under way, when this worker last ended."""
    spooled_turns = {
        Turn(record.job_id, record.report.epoch)
        for record in agent.delivery.load(agent.incarnation)
        if record.report.epoch is not None
    }
    for attempt in await agent.attempts.find_again():
        turn = turn_of(attempt.offer)
        if turn in spooled_turns:
            agent.inbox.adopted(attempt.offer, Phase.FINISHED)
        elif attempt.running:
            agent.inbox.adopted(attempt.offer, Phase.RUNNING)
            agent.watch_adopted(attempt.offer)
        elif attempt.ending:
            agent.inbox.adopted(attempt.offer, Phase.RUNNING)
            agent.judge_adopted(attempt.offer, attempt.ending)
    for turn in spooled_turns:
        agent.inbox.reported_before(turn)


async def _deliver_once_known(agent: Agent) -> None:
    """Waits for the registration: before it, this process is not known, and its reports would be refused for good."""
    await agent.connected.wait()
    await agent.delivery.run()


def _listen_to_signals(agent: Agent, settings: WorkerSettings, ending: MachineEnding) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.signalled, number, settings.shutdown_grace_s)
    loop.add_signal_handler(signal.SIGUSR1, ending.signalled, signal.SIGUSR1, settings.end_notice_s)
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload_token(agent))


def _reload_token(agent: Agent) -> None:
    if agent.token.reload(force=True):
        log.info("a new token was read")
        agent.token_changed.set()


def _loop_ended(agent: Agent, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception():
        log.critical("a loop of the agent failed", exc_info=task.exception())
        agent.depart(Departure("a loop of the agent failed", "E_PROCESS_CRASH"))


async def _sample_loop(agent: Agent, probe: GpuProbe, settings: WorkerSettings) -> None:
    await agent.connected.wait()
    if not probe.inventory.is_known:
        await take_up_gpus(agent, settings, await probe.answered())
    while probe.inventory.source == "nvml":
        asked_at = boottime()
        await sample_once(agent, probe)
        await asyncio.sleep(max(0.0, asked_at + agent.heartbeat_interval_s - boottime()))


async def take_up_gpus(agent: Agent, settings: WorkerSettings, inventory: Inventory) -> None:
    """Registers GPUs that the driver did not tell of at the start."""
    try:
        gpus = chosen_gpus(inventory, settings.gpus)
    except NoSuchGpu as error:
        log.critical("%s", error.detail)
        agent.depart(Departure(error.detail, "E_REFUSED"))
        return
    labels = {**agent.machine.labels, **reported_labels(gpus), **settings.labels}
    agent.machine = replace(agent.machine, gpus=gpus, labels=labels)
    agent.inbox.max_jobs = jobs_at_once(settings, len(gpus))
    backoff = Backoff()
    while True:
        try:
            await agent.register()
            return
        except (Unreachable, Refused) as error:
            log.debug("the GPUs could not be told yet: %s", error)
        await asyncio.sleep(backoff.next_s())


async def _finishing_loop(agent: Agent) -> None:
    while True:
        await asyncio.sleep(min(FINISHING_TOLD_EVERY_S, agent.heartbeat_interval_s * 5))
        await agent.tell_finishing()


async def _leave_loop(agent: Agent, settings: WorkerSettings) -> None:
    if settings.leave_after_s is None:
        return
    left_s = settings.leave_after_s
    while left_s > 0:
        await asyncio.sleep(left_s)
        left_s = agent.answered_at + settings.leave_after_s - boottime()
    log.error("no orchestrator has answered for %g s: the worker leaves", settings.leave_after_s)
    terminate(agent, settings.shutdown_grace_s)


async def _tidy_loop(agent: Agent, limits: KeepLimits) -> None:
    while True:
        try:
            await agent.attempts.tidy(limits)
        except OSError as error:
            log.warning("old folders of attempts could not be removed: %s", error)
        await asyncio.sleep(limits.tidy_every_s)


async def sample_once(agent: Agent, probe: GpuProbe) -> None:
    """Reads how the GPUs are doing, however slow the driver is: for heartbeats, and for the jobs that run on them."""
    agent.samples = await probe.sample()
    agent.samples_read_at = boottime()
    await agent.attempts.senders.metrics.note_gpus([*agent.samples, *agent.node_samples()])


async def _say_goodbye(agent: Agent, departure: Departure) -> None:
    try:
        async with asyncio.timeout(GOODBYE_WITHIN_S):
            await agent.client.goodbye(Goodbye(reason=departure.reason, incarnation=agent.incarnation))
    except (Unreachable, Refused, TimeoutError) as error:
        log.debug("goodbye was not delivered: %s", error)


def work_folder(settings: WorkerSettings) -> Path:
    return settings.work_dir or default_state_dir(_folder_name(settings.name))


def _folder_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:128] or "worker"


def default_name() -> str:
    return socket.gethostname()
