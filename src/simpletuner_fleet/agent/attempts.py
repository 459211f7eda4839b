"""Attempts on this machine: prepared, started, watched, their output sent on, and found again after a restart."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from simpletuner_fleet.agent.data.datasets import DataFailed, Datasets, DataUnreachable, FetchProgress
from simpletuner_fleet.agent.data.resume import CheckpointFetcher, ResumeFailed, read_resume
from simpletuner_fleet.agent.guard.runner import (
    EndedAttempt,
    Runner,
    RunningTrainer,
    ShimUnavailable,
    TrainerExit,
)
from simpletuner_fleet.agent.guard.shim_client import Order, ReportTo
from simpletuner_fleet.agent.guard.watchdog import Watchdogs
from simpletuner_fleet.agent.inbox import AttemptEnding, Turn, turn_of
from simpletuner_fleet.agent.metrics.follower import MetricsFollowers, MetricSources, Progress
from simpletuner_fleet.agent.ship.log_shipper import LogShippers, LogSources
from simpletuner_fleet.agent.ship.log_stream import LogLimits
from simpletuner_fleet.agent.ship.masking import NO_MASK, Mask
from simpletuner_fleet.agent.ship.output_log import last_lines
from simpletuner_fleet.agent.ship.uploads import Uploads
from simpletuner_fleet.agent.state_dir import AttemptDir, StateDir, StateDirError
from simpletuner_fleet.agent.wire.bandwidth import Bandwidth
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.job import EndReason, Outcome
from simpletuner_fleet.core.watchdog import Verdict
from simpletuner_fleet.protocol.messages import JobSubmit, StatusReport
from simpletuner_fleet.protocol.uploads import Resume
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits, habits_of
from simpletuner_fleet.trainers.contract import Launch, Paths, TrainerError
from simpletuner_fleet.trainers.registry import Registry

log = logging.getLogger(__name__)

ADOPT_GRACE_S = 2.0
DELIVERED = "delivered"
METRICS_SENT = "metrics-sent.json"
SHIM_BEGINS_WITHIN_S = 2.0
SHIM_LOOK_S = 0.02
WANTED_LOOK_S = 0.2
SAVE_FIRST_GRACE_S = 3.0
"""With less time than this a trainer is stopped at once: a checkpoint would hardly be done."""
SAVE_FIRST_SHARE = 0.6
AFTER_ITS_DATA = Launch(argv=[], env={}, cwd="")
"""Stands for what is prepared once the data is in place."""


class ShimTrust(NamedTuple):
    """How a shim that must report by itself knows the orchestrator."""

    cafile: str | None = None
    pinned_certfile: str | None = None
    no_verify: bool = False


class FoundAttempt(NamedTuple):
    """What a restart finds of an attempt."""

    offer: JobSubmit
    running: RunningTrainer | None
    ending: AttemptEnding | None


class AttemptEvents(Protocol):
    """Whoever is told of what attempts do by themselves."""

    def checkpoint_stored(self, turn: Turn, step: int) -> None:
        """A checkpoint is safely off this machine."""

    def progress_report(self, turn: Turn, progress: Progress) -> StatusReport | None:
        """How far the trainer is; answers with the report to send, if there is one to send."""

    def out_of_time(self, turn: Turn) -> None:
        """The time limit is reached, and the shim waits for a checkpoint to be saved."""

    def sending_ended(self) -> None:
        """A report may have nothing more to wait for."""


class NoEvents:
    """For an attempt that nobody waits for."""

    def checkpoint_stored(self, turn: Turn, step: int) -> None: ...
    def progress_report(self, turn: Turn, progress: Progress) -> StatusReport | None: ...
    def out_of_time(self, turn: Turn) -> None: ...
    def sending_ended(self) -> None: ...


class Attempts:
    def __init__(
        self,
        state: StateDir,
        runner: Runner,
        trainers: Registry,
        client: OrchestratorClient,
        trust: ShimTrust,
        bandwidth: Bandwidth | None = None,
        log_limits: LogLimits | None = None,
        data: Datasets | None = None,
        events: AttemptEvents | None = None,
    ) -> None:
        self._state = state
        self._runner = runner
        self._trainers = trainers
        self._client = client
        self._trust = trust
        self.data = data
        self._folders: dict[Turn, str] = {}
        self._masks: dict[Turn, Mask] = {}
        self._running: dict[Turn, RunningTrainer] = {}
        self._prepared: dict[Turn, asyncio.Task[Launch]] = {}
        self._events = events = events or NoEvents()
        self.uploads = Uploads(
            client,
            bandwidth or Bandwidth(),
            on_over=events.sending_ended,
            on_stored=events.checkpoint_stored,
            before_stored=self._before_stored,
        )
        self.metrics = MetricsFollowers(client, events.sending_ended, events.progress_report)
        self.logs = LogShippers(client, log_limits, events.sending_ended)
        self.watchdogs = Watchdogs(client, on_over=events.sending_ended, on_verdict=self._condemned)
        self._stopping: dict[Turn, asyncio.Task[None]] = {}

    def has_sent_all(self, turn: Turn) -> bool:
        """Whether its report may go: whatever was to arrive before it has, or will not."""
        senders = (self.logs, self.metrics, self.uploads, self.watchdogs)
        return all(sender.are_over(turn) for sender in senders)

    def hurry(self) -> None:
        """There is no more time: what was not sent stays here."""
        for sender in (self.uploads, self.metrics, self.watchdogs, self.logs):
            sender.hurry()

    def prepare(self, offer: JobSubmit) -> None:
        """Folder and config are written while the acceptance is on its way; nothing runs yet."""
        self._folders[turn_of(offer)] = offer.attempt_id
        self._masks[turn_of(offer)] = _mask(offer)
        self._prepared[turn_of(offer)] = asyncio.create_task(asyncio.to_thread(self._prepare, offer))

    async def put_in_place(
        self,
        offer: JobSubmit,
        is_wanted: Callable[[], bool],
        tell: Callable[[FetchProgress], None] = lambda fetching: None,
    ) -> AttemptEnding | None:
        """The data and the checkpoint to go on from, if any. None once they are there, else why it cannot start.

        May take as long as they have gigabytes; it ends when the attempt is not `wanted` any more.
        """
        if offer.resume is None and not offer.datasets:
            return None
        data = FetchProgress()
        fetching = asyncio.create_task(self._fetch(offer, data))
        try:
            while not fetching.done():
                await asyncio.wait({fetching}, timeout=WANTED_LOOK_S)
                if not is_wanted():
                    return AttemptEnding(reason=EndReason.STOPPED)
                tell(data)
            fetching.result()
        except DataUnreachable as error:
            return AttemptEnding(reason=EndReason.DATA_UNREACHABLE, error=error.detail)
        except ResumeFailed as error:
            return AttemptEnding(reason=EndReason.RESUME_FAILED, error=error.detail)
        except (FleetError, OSError) as error:
            return AttemptEnding(reason=EndReason.START_FAILED, error=_told(error))
        finally:
            fetching.cancel()
        return None

    async def start(self, offer: JobSubmit, lease_s: float, leased_at: float) -> AttemptEnding | None:
        """None once the trainer runs, else why it does not."""
        turn = turn_of(offer)
        try:
            launch = await self._prepared.pop(turn)
            running = await self._runner.start(self._order(offer, launch, lease_s, leased_at))
        except (FleetError, OSError) as error:
            return AttemptEnding(
                reason=EndReason.START_FAILED, error=self._masks.get(turn, NO_MASK).text(_told(error))
            )
        self._watch(offer, running)
        if running.pid is None:
            return self._ending(turn, await running.wait())
        return None

    async def ended(self, turn: Turn) -> AttemptEnding:
        """When the process tree is gone."""
        ending = self._ending(turn, await self._running[turn].wait())
        return await self.watchdogs.last_word(turn, ending)

    async def _before_stored(self, turn: Turn) -> None:
        """Whoever goes on from a checkpoint has its numbers, and knows that it is not spoiled."""
        await self.watchdogs.look_now(turn)
        await self.metrics.flush(turn)

    def _condemned(self, turn: Turn, verdict: Verdict) -> None:
        if verdict.resume_below is not None:
            self.uploads.spoiled_from(turn, verdict.resume_below)
        if verdict.restart:
            self.uploads.goes_on_elsewhere(turn)

    def stop(self, turn: Turn, grace_s: float, outcome: Outcome, save_s: float | None = None) -> None:
        """Asks for a checkpoint first where the trainer can make one and there is time.

        `save_s` is time of its own for that; without it the grace covers both, and what was to be saved by an earlier
        call is waited for no longer.
        """
        running = self._running.get(turn)
        if running is None:
            return
        if outcome is Outcome.RELEASED:
            self.uploads.goes_on_elsewhere(turn)
        earlier = self._stopping.pop(turn, None)
        if earlier:
            earlier.cancel()
        if save_s is None and (earlier or grace_s < SAVE_FIRST_GRACE_S):
            running.stop(grace_s, outcome=outcome)
            return
        wait_s, stop_by_s = (save_s, save_s + grace_s) if save_s else (grace_s * SAVE_FIRST_SHARE, grace_s)
        self._stopping[turn] = asyncio.create_task(
            self._save_and_stop(turn, running, outcome, wait_s, grace_s, stop_by_s)
        )

    async def _save_and_stop(
        self,
        turn: Turn,
        running: RunningTrainer,
        outcome: Outcome,
        wait_s: float,
        grace_s: float,
        stop_by_s: float,
    ) -> None:
        """The trainer has `wait_s` for its checkpoint, then `grace_s` to end, and `stop_by_s` for both."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(wait_s):
                if not running.paused:
                    await self.uploads.checkpoint_now(turn, running.wait())
        except TimeoutError:
            log.info("job %s: no checkpoint was made in time; it is stopped without one", turn[0])
        except Exception:  # anybody's plug-in: the trainer is stopped whatever it does
            log.exception("job %s: a checkpoint could not be asked for", turn[0])
        running.stop(max(0.0, min(grace_s, stop_by_s - (clock() - began))), outcome=outcome)

    def is_out_of_time(self, turn: Turn) -> bool:
        return turn in self._running and self._running[turn].out_of_time

    def renew(self, lease_s: float, since: float) -> None:
        for running in self._running.values():
            running.renew(lease_s, since=since)

    async def forget(self, turn: Turn) -> None:
        """Nothing is owed any more: the shim may go; the job's output stays on the disk."""
        prepared = self._prepared.pop(turn, None)
        if prepared:
            with contextlib.suppress(FleetError, OSError):
                await prepared
        stopping = self._stopping.pop(turn, None)
        if stopping:
            stopping.cancel()
        self.uploads.forget(turn)
        self.metrics.forget(turn)
        self.watchdogs.forget(turn)
        self.logs.forget(turn)
        self._masks.pop(turn, None)
        attempt_id = self._folders.pop(turn, None)
        if attempt_id and self.data:
            await self.data.release(attempt_id)
        self._mark_delivered(attempt_id)
        running = self._running.pop(turn, None)
        if running:
            await running.release()

    def _mark_delivered(self, attempt_id: str | None) -> None:
        """So that a restart does not take it up; an id that cannot name a folder never had one."""
        if attempt_id is None:
            return
        with contextlib.suppress(StateDirError, FileNotFoundError):
            (self._state.attempt(attempt_id).path / DELIVERED).touch()

    async def find_again(self) -> list[FoundAttempt]:
        """After a restart: trainers that still run are taken up, those that ended are told."""
        attempts = []
        for attempt in self._state.attempts():
            offer = attempt.load_order()
            if offer is None or (attempt.path / DELIVERED).exists():
                continue
            self._folders[turn_of(offer)] = offer.attempt_id
            attempts += await self._find(attempt, offer)
        if self.data:
            await self.data.take_up([one.offer for one in attempts if one.running])
        return attempts

    async def _find(self, attempt: AttemptDir, offer: JobSubmit) -> list[FoundAttempt]:
        if not await self._was_begun(attempt):
            return [
                FoundAttempt(
                    offer,
                    None,
                    AttemptEnding(reason=EndReason.AGENT_LOST, error="the worker stopped before it started"),
                )
            ]
        match await self._runner.adopt(attempt.path):
            case RunningTrainer() as running:
                log.info("took up job %s again, attempt %d", offer.job_id, offer.attempt)
                self._masks[turn_of(offer)] = Mask.of(running.hidden)
                self._watch(offer, running)
                return [FoundAttempt(offer, running, None)]
            case EndedAttempt(exit=exit, reported=reported):
                if exit.reason is EndReason.SHIM_LOST:
                    (attempt.path / DELIVERED).touch()
                    return []
                if reported:
                    self._send_leftovers(offer, attempt, exit)
                    return []
                ending = _unmasked(exit, "" if offer.secrets else exit.last_lines)
                self._upload(offer, ending)
                return [FoundAttempt(offer, None, await self.watchdogs.last_word(turn_of(offer), ending))]

    async def _was_begun(self, attempt: AttemptDir) -> bool:
        """A shim may hold an order it has not carried out yet: whoever claims the attempt first has it."""
        if not attempt.has_trainer and await asyncio.to_thread(attempt.claim):
            return False
        for _ in range(int(SHIM_BEGINS_WITHIN_S / SHIM_LOOK_S)):
            if attempt.has_trainer:
                break
            await asyncio.sleep(SHIM_LOOK_S)
        return True

    def _prepare(self, offer: JobSubmit) -> Launch:
        if offer.missing_secrets:
            raise TrainerError(_missing(offer.missing_secrets))
        attempt = self._state.create_attempt(offer.attempt_id)
        attempt.save_order(offer)
        return AFTER_ITS_DATA if offer.datasets else self._launch(offer)

    def _launch(self, offer: JobSubmit) -> Launch:
        paths = self._paths(self._state.attempt(offer.attempt_id))
        return self._trainers.get(offer.trainer).launch(self._located(offer), paths)

    def _located(self, offer: JobSubmit) -> JobSubmit:
        return self.data.located(offer) if self.data else offer

    async def _fetch(self, offer: JobSubmit, data: FetchProgress) -> None:
        turn = turn_of(offer)
        if offer.datasets:
            await asyncio.shield(self._prepared[turn])
            if self.data is None:
                raise DataFailed("the data has no place here: this worker keeps no data cache")
            await self.data.put_in_place(offer, data)
            self._prepared[turn] = asyncio.create_task(asyncio.to_thread(self._launch, offer))
        if offer.resume is not None:
            await self._resume(offer)

    async def _resume(self, offer: JobSubmit) -> None:
        """Changes what was prepared: the trainer will go on from the checkpoint."""
        turn = turn_of(offer)
        launch = await asyncio.shield(self._prepared[turn])
        resume = read_resume(offer.resume or {})
        attempt = self._state.attempt(offer.attempt_id)
        paths, habits = self._paths(attempt), self._habits(offer)
        nearby = await asyncio.to_thread(self._made_here, offer, resume)
        fetcher = CheckpointFetcher(
            self._client, offer.job_id, attempt.path / "resume" / resume.name, nearby=nearby
        )
        checkpoint = await fetcher.place(resume, habits.output_folder(paths))

        def point() -> Launch:
            return habits.place_resume(self._located(offer), paths, checkpoint, launch)

        self._prepared[turn] = asyncio.create_task(asyncio.to_thread(point))

    def _made_here(self, offer: JobSubmit, resume: Resume) -> list[Path]:
        """Folders of earlier attempts of the job that may hold the checkpoint."""
        folders = []
        for attempt in self._state.attempts():
            order = attempt.load_order()
            if order and order.job_id == offer.job_id and order.attempt_id != offer.attempt_id:
                folder = self._habits(order).output_folder(self._paths(attempt)) / resume.name
                if folder.is_dir():
                    folders.append(folder)
        return folders

    def _habits(self, offer: JobSubmit) -> CheckpointHabits:
        """Of a trainer that may have been uninstalled since it ran."""
        try:
            return habits_of(self._trainers.get(offer.trainer))
        except TrainerError:
            return CheckpointHabits()

    def _paths(self, attempt: AttemptDir) -> Paths:
        return Paths(attempt_dir=attempt.path, config_dir=attempt.config_dir, output_dir=attempt.output_dir)

    def _order(self, offer: JobSubmit, launch: Launch, lease_s: float, leased_at: float) -> Order:
        attempt = self._state.attempt(offer.attempt_id)
        report = None
        if isinstance(offer.upload_token, str):
            report = ReportTo(
                url=self._client.url,
                job_id=offer.job_id,
                epoch=offer.epoch,
                upload_token=offer.upload_token,
                attempt=offer.attempt,
                cafile=self._trust.cafile,
                pinned_certfile=self._trust.pinned_certfile,
                no_verify=self._trust.no_verify,
            )
        return Order(
            attempt_id=offer.attempt_id,
            attempt_dir=str(attempt.path),
            argv=launch.argv,
            env=launch.env,
            cwd=launch.cwd,
            output=str(attempt.output_log),
            lease_s=lease_s,
            leased_at=leased_at,
            on_partition=offer.on_partition,
            adopt_grace_s=ADOPT_GRACE_S,
            time_limit_s=offer.time_limit_s,
            time_limit_save_s=offer.checkpoint_wait_s if offer.on_time_limit == "requeue" else None,
            report=report,
            hidden=[value.decode() for value in self._masks.get(turn_of(offer), NO_MASK).values],
        )

    def _watch(self, offer: JobSubmit, running: RunningTrainer) -> None:
        turn = turn_of(offer)
        self._running[turn] = running
        running.on_out_of_time = lambda: self._events.out_of_time(turn)
        self._upload(offer, running)

    def _upload(self, offer: JobSubmit, until: RunningTrainer | AttemptEnding) -> asyncio.Task[None]:
        attempt = self._state.attempt(offer.attempt_id)
        paths, habits = self._paths(attempt), self._habits(offer)
        sources = MetricSources(
            files=tuple(habits.progress_files(paths)),
            output_log=attempt.output_log,
            sent=attempt.path / METRICS_SENT,
            events=habits.output_folder(paths),
        )
        self.metrics.follow(offer, sources, _end(until))
        trainer = until if isinstance(until, RunningTrainer) else None
        self.watchdogs.watch(offer, sources, trainer, _end(until))
        self._ship_logs(offer, attempt, habits, until)
        return self.uploads.upload(offer, paths, habits, _end(until))

    def _ship_logs(
        self,
        offer: JobSubmit,
        attempt: AttemptDir,
        habits: CheckpointHabits,
        until: RunningTrainer | AttemptEnding,
    ) -> None:
        """An attempt that ended while there was no agent took its secrets with it."""
        mask = self._masks.get(turn_of(offer))
        sources = LogSources(
            output_log=attempt.output_log,
            folder=attempt.path,
            rank_logs=lambda: habits.rank_logs(self._paths(attempt)),
            mask=mask or _mask(offer),
            unmaskable=mask is None and bool(offer.secrets),
        )
        self.logs.begin(offer, sources, _end(until))

    def _send_leftovers(self, offer: JobSubmit, attempt: AttemptDir, exit: TrainerExit) -> None:
        """The shim has told how it ended while there was no agent; its log and its results are still here."""
        turn = turn_of(offer)
        if exit.reason is EndReason.EXITED:
            left = [self._upload(offer, AttemptEnding(exit_code=0)), self.logs.task(turn)]
        else:
            self._ship_logs(offer, attempt, self._habits(offer), AttemptEnding(reason=exit.reason))
            left = [self.logs.task(turn)]

        def close(_: asyncio.Task[None]) -> None:
            if all(task.done() for task in left):
                self.uploads.forget(turn)
                self.logs.forget(turn)
                if not any(task.cancelled() for task in left):
                    (attempt.path / DELIVERED).touch()

        for task in left:
            task.add_done_callback(close)

    def _ending(self, turn: Turn, exit: TrainerExit) -> AttemptEnding:
        """The last lines are read again where there is something to hide: a cut may have gone through it."""
        mask = self._masks.get(turn, NO_MASK)
        if not mask.values:
            return _unmasked(exit, exit.last_lines)
        log_file = self._state.attempt(self._folders[turn]).output_log
        ending = _unmasked(exit, last_lines(log_file, mask=mask))
        return replace(ending, error=mask.text(exit.error)) if exit.error else ending


def _mask(offer: JobSubmit) -> Mask:
    token = [offer.upload_token] if isinstance(offer.upload_token, str) else []
    return Mask.of([*(offer.secrets or {}).values(), *token])


async def _end(until: RunningTrainer | AttemptEnding) -> TrainerExit | AttemptEnding:
    return await until.wait() if isinstance(until, RunningTrainer) else until


def _unmasked(exit: TrainerExit, lines: str) -> AttemptEnding:
    return AttemptEnding(
        reason=exit.reason,
        exit_code=exit.exit_code,
        exit_signal=exit.signal,
        error=exit.error,
        last_lines=lines,
    )


def _missing(names: list[str]) -> str:
    return (
        f"the orchestrator cannot give the secret '{names[0]}': it was deleted, or its key is lost; "
        f"store it again with 'simpletuner secrets set {names[0]}' and retry the job"
    )


def _told(error: FleetError | OSError) -> str:
    if isinstance(error, ShimUnavailable):
        return f"the worker could not start a process: {error.detail}"
    if isinstance(error, FleetError):
        return error.detail
    return f"the worker could not prepare the job: {error.strerror or error}"
