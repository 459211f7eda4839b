"""Carries out what the inbox decides, and holds the state that the agent's loops share."""

import asyncio
import logging
import math
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.agent.actions import (
    Action,
    AskForCheckpoint,
    AskForValidation,
    Forget,
    Leave,
    SendAccept,
    SendReport,
    StartTrainer,
    StopTrainer,
    turn_of,
)
from simpletuner_fleet.agent.attempts.attempts import Attempts
from simpletuner_fleet.agent.attempts.endings import SHIM_OUTCOME, AttemptEnding
from simpletuner_fleet.agent.audit_memory import AuditMemory
from simpletuner_fleet.agent.data.datasets import FetchProgress
from simpletuner_fleet.agent.departure import Departure
from simpletuner_fleet.agent.gpus.gpu_probe import with_age
from simpletuner_fleet.agent.gpus.withheld import WithheldGpus
from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.inbox import Inbox, Phase
from simpletuner_fleet.agent.lease import lease_for
from simpletuner_fleet.agent.machine_facts import MachineFacts
from simpletuner_fleet.agent.senders import AttemptEvents
from simpletuner_fleet.agent.ship.delivery import Delivery
from simpletuner_fleet.agent.ship.spool import Spool
from simpletuner_fleet.agent.start_reports import fetching_report
from simpletuner_fleet.agent.token_source import TokenSource
from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.errors import Refused, TokenRejected, Unreachable
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import FINISHING, Results
from simpletuner_fleet.core.jobs.progress import MAX_MORE_TEXT_CHARS
from simpletuner_fleet.core.jobs.reconcile import incarnation_of
from simpletuner_fleet.protocol.data import DataHeld
from simpletuner_fleet.protocol.messages import (
    Accept,
    EndNotice,
    GpuSample,
    Heartbeat,
    JobSubmit,
    Register,
    Registered,
    ReportStatus,
    StatusReport,
)

log = logging.getLogger(__name__)

LONGEST_INTERVAL_S = 86_400.0
TELL_FETCHING_EVERY_S, WARN_UNSTORED_EVERY_S = 2.0, 600.0
DISOWNED_AFTER_S = 600.0
"""From when the lease has run out: so long may a rotated token be on its way."""
BEATS_BEFORE_END_S = 5.0
FOLDER_LOST = "the worker does not find its order any more, and cannot tell what of it was sent"
KEEP_IDLE_S = 60.0
"""At least: a connection outlives the pause between two heartbeats, however long that is."""


class Agent:
    def __init__(
        self,
        machine: MachineFacts,
        inbox: Inbox,
        client: OrchestratorClient,
        token: TokenSource,
        spool: Spool,
        make_attempts: Callable[[AttemptEvents], Attempts],
        audit_memory: AuditMemory,
    ) -> None:
        """Creates the attempts here, because they report to this agent what they do by themselves."""
        self.machine, self.inbox, self.client = machine, inbox, client
        self.client.hearings.go_on = True
        self.token, self.audit_memory = token, audit_memory
        self.attempts = make_attempts(self)
        self.delivery = Delivery(
            spool,
            client,
            may_go=self._may_report,
            on_delivered=self._report_delivered,
            complete=self._complete_report,
        )
        self.incarnation = incarnation_of(machine.start, secrets.token_hex(8))
        self.worker_id = ""
        self.heartbeat_interval_s = 30.0
        self.heartbeat_timeout_s = 120.0
        self.ping_interval_s = 15.0
        self.samples: list[GpuSample] = []
        self.samples_read_at = -math.inf
        self.node_samples: Callable[[], list[GpuSample]] = list
        """How the GPUs of the worker's other nodes are doing."""
        self.connected = asyncio.Event()
        self.token_changed = asyncio.Event()
        self.departure: asyncio.Future[Departure] = asyncio.get_running_loop().create_future()
        self.heard_at = -math.inf
        """When the newest of the calls that were answered was sent, or the orchestrator was found dead.

        Never, for a new agent: what it takes up may be paused for good reason, and is not renewed before an answer.
        """
        self.answered_at = boottime()
        self.end_source = ""
        """Who has said that this machine is taken away; empty: nobody."""
        self.end_at = math.inf
        """When, by this boot's clock."""
        self.may_return = False
        self._accepted_at: dict[Turn, float] = {}
        self._fetching_told_at: dict[Turn, float] = {}
        self._unstored_warned_at: dict[Turn, float] = {}
        self._data_reported: DataHeld | None = None
        self._withheld = WithheldGpus()
        self._tasks: set[asyncio.Task[None]] = set()

    # Speaking.

    async def register(self) -> Registered:
        sent_at, data = boottime(), self._data_held()
        answer = await self.client.register(self._registration(data))
        self._data_reported = data
        self.worker_id = answer.worker_id
        self._keep_time(answer.heartbeat_interval_s, answer.heartbeat_timeout_s)
        if 0 < answer.ping_interval_s <= LONGEST_INTERVAL_S:
            self.ping_interval_s = answer.ping_interval_s
        self.client.answer_timeout_s = min(15.0, max(1.0, self.heartbeat_timeout_s / 4))
        self.audit_memory.registered(answer.audit_head, answer.audit_proofs)
        self.connected.set()
        self.perform(self.inbox.heard(answer))
        self.extend_lease(sent_at)
        self.delivery.wake()
        return answer

    async def heartbeat(self) -> None:
        """Sends a heartbeat and carries out the orders in its answer. Raises Unreachable or Refused."""
        sent_at, data = boottime(), self._data_held()
        not_left = self.inbox.gpus_not_left()
        answer = await self.client.heartbeat(
            Heartbeat(
                worker_id=self.worker_id,
                status=self.inbox.status,
                attempts=self.inbox.held_attempts(self.attempts.paused()),
                gpus=self._withheld.samples([*self._own_samples(sent_at), *self.node_samples()], not_left),
                data=None if data == self._data_reported else data,
                incarnation=self.incarnation,
                notice=self._end_notice(),
                audit_head=self.audit_memory.newest,
            )
        )
        self._data_reported = data
        self._withheld.heard(not_left)
        self._keep_time(answer.heartbeat_interval_s, answer.heartbeat_timeout_s)
        self.audit_memory.heard(answer.audit_head)
        self.perform(self.inbox.heard(answer))
        self.extend_lease(sent_at)

    def _own_samples(self, now: float) -> list[GpuSample]:
        return with_age(self.samples, now - self.samples_read_at, self.heartbeat_interval_s)

    def _keep_time(self, interval_s: float, timeout_s: float) -> None:
        """Adopts new intervals. Implausible ones would stop trainers or flood the network: the last good ones hold."""
        if 0 < interval_s < timeout_s <= LONGEST_INTERVAL_S:
            self.heartbeat_interval_s, self.heartbeat_timeout_s = interval_s, timeout_s
            self.client.keep_connections_for(max(KEEP_IDLE_S, 2 * interval_s))
        else:
            log.warning("the orchestrator wants a heartbeat every %g s within %g s", interval_s, timeout_s)

    def _end_notice(self) -> EndNotice | None:
        if not self.end_source:
            return None
        return EndNotice(source=self.end_source, in_s=max(0.0, self.end_at - boottime()))

    @property
    def beats_every_s(self) -> float:
        """Returns the heartbeat interval, which is shorter once the machine is about to be taken away."""
        return (
            min(self.heartbeat_interval_s, BEATS_BEFORE_END_S)
            if self.end_source
            else self.heartbeat_interval_s
        )

    def extend_lease(self, heard_at: float) -> None:
        """Extends the lease: trainers may run while the orchestrator cannot have given their jobs away.

        It does so a whole timeout after it last heard us, which was after `heard_at`; the margin is for stopping in time.
        """
        self.answered_at = max(self.answered_at, heard_at)
        self.heard_at = max(self.heard_at, heard_at)
        self.attempts.renew(self.lease_s, self.heard_at)

    @property
    def lease_s(self) -> float:
        """Returns how long the lease is, counted from `heard_at`."""
        return lease_for(self.heartbeat_timeout_s)

    async def connection_refused(self) -> None:
        """Extends the lease if the orchestrator is dead: it can give nothing away, and on its return it waits anew."""
        asked_at = boottime()
        if await self.client.outage.is_certain(asked_at - self.answered_at):
            self.orchestrator_is_dead(asked_at)

    def orchestrator_is_dead(self, asked_at: float) -> None:
        """Extends the lease unless it has run out: then the job may have been given away before the death."""
        if asked_at < self.heard_at + self.lease_s:
            self.heard_at = max(self.heard_at, asked_at)
            self.attempts.renew(self.lease_s, self.heard_at)

    # Doing.

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case SendAccept(turn, attempt, seq):
                self.attempts.prepare(self.inbox.held[turn].offer)
                self._spawn(self._accept(turn, attempt, seq))
            case StartTrainer(offer):
                self._spawn(self._run(offer))
            case StopTrainer(turn, grace_s, why, save_s):
                log.info("stopping job %s: %s%s", turn[0], why, ", a checkpoint first" if save_s else "")
                self.attempts.stop(turn, grace_s, SHIM_OUTCOME[why], save_s)
            case AskForCheckpoint(turn, asked_at):
                self._spawn(self._ask_for_checkpoint(turn, asked_at))
            case AskForValidation(turn, asked_at):
                self._spawn(self._ask_to_validate(turn, asked_at))
            case SendReport(turn, report, final):
                report.incarnation = self.incarnation
                self._spawn(self._keep(turn, report) if final else self._tell(turn, report))
            case Forget(turn):
                self._spawn(self.attempts.forget(turn))
            case Leave(reason):
                self.depart(Departure(reason))

    async def _keep(self, turn: Turn, report: StatusReport) -> None:
        """Keeps an outcome. It takes the job back at once where that was thought lost: only then is anything stored."""
        await self.delivery.keep(turn, report)
        if self.client.hearings.are_awaited:
            await self.connected.wait()
            await self.tell_finishing()

    async def _ask_for_checkpoint(self, turn: Turn, asked_at: float) -> None:
        log.info("job %s: a checkpoint is asked for", turn[0])
        if not await self.attempts.ask_for_checkpoint(turn):
            log.warning("job %s: its trainer could not be asked for a checkpoint; tried again later", turn[0])
            self.inbox.could_not_ask(turn, asked_at)

    async def _ask_to_validate(self, turn: Turn, asked_at: float) -> None:
        log.info("job %s: a validation is asked for", turn[0])
        heard = await self.attempts.ask_to_validate(turn)
        if not heard:
            log.warning("job %s: its trainer could not be asked to validate; tried again later", turn[0])
        self.perform(self.inbox.asked_to_validate(turn, asked_at, heard=heard))

    # What attempts do by themselves.

    def checkpoint_stored(self, turn: Turn, step: int) -> None:
        self.inbox.stored(turn, step)

    def out_of_time(self, turn: Turn) -> None:
        self.perform(self.inbox.out_of_time(turn))

    def sending_ended(self) -> None:
        self.delivery.wake()

    def _may_report(self, turn: Turn, report: StatusReport) -> bool:
        """Returns whether a report may go. Completed means stored: after a shutdown, the next start reports it."""
        senders = self.attempts.senders
        if not senders.has_sent_all(turn):
            return False
        return report.status is not ReportStatus.COMPLETED or not senders.was_cut_short(turn)

    def _complete_report(self, turn: Turn, report: StatusReport) -> None:
        if report.status is not ReportStatus.COMPLETED:
            return
        if self.inbox.has_its_report_alone(turn):
            report.results, report.error = Results.MISSING, FOLDER_LOST
        else:
            results = self.attempts.senders.results(turn)
            report.results = results
            report.error = self.attempts.senders.trouble(turn) if results is Results.MISSING else None

    async def tell_finishing(self) -> None:
        """Says of each attempt that ended well what its results still wait for."""
        for turn, report in self.delivery.waiting():
            holding = self.inbox.held.get(turn)
            if report.status is not ReportStatus.COMPLETED or holding is None or not self.connected.is_set():
                continue
            progress: dict[str, Any] = {"phase": FINISHING}
            if holding.step is not None:
                progress["step"] = holding.step
            trouble = self.attempts.senders.trouble(turn)
            if trouble:
                progress["waiting_for"] = trouble[:MAX_MORE_TEXT_CHARS]
                self._warn_of_unstored(turn, trouble)
            await self._tell(
                turn,
                StatusReport(
                    status=ReportStatus.RUNNING,
                    attempt=holding.offer.attempt,
                    epoch=turn[1],
                    progress=progress,
                    incarnation=self.incarnation,
                ),
            )

    def _warn_of_unstored(self, turn: Turn, trouble: str) -> None:
        """Says it in the worker's own log, not as often as in its reports."""
        now = boottime()
        if now >= self._unstored_warned_at.get(turn, -math.inf) + WARN_UNSTORED_EVERY_S:
            self._unstored_warned_at[turn] = now
            log.warning("job %s: its results are not stored yet: %s", turn[0], trouble)

    def _report_delivered(self, turn: Turn) -> None:
        self._unstored_warned_at.pop(turn, None)
        self.perform(self.inbox.delivered(turn))

    def depart(self, departure: Departure) -> None:
        if not self.departure.done():
            self.departure.set_result(replace(departure, may_return=self.may_return))

    def disowned(self, now: float) -> bool:
        """Ends what runs once our token has been refused for so long that its jobs were given away long ago.

        Either the token was rotated and the new one never arrived, or the worker was deleted: nobody would ever let
        these jobs go on.
        """
        if not self.inbox.held or now < self.answered_at + self.lease_s + DISOWNED_AFTER_S:
            return False
        for turn in list(self.inbox.held):
            self.perform(self.inbox.went_stale(turn))
        return True

    def superseded(self) -> None:
        """Stops everything and leaves: another agent has our token and was heard last, so it is the worker now."""
        for turn in list(self.inbox.held):
            self.perform(self.inbox.went_stale(turn))
        self.depart(Departure("another agent has registered with this worker's token", "E_SUPERSEDED"))

    async def finish_tasks(self) -> None:
        """Waits until nothing that was begun is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def drop_work(self) -> None:
        """Ends what was begun and is still under way: nothing of it outlives the agent."""
        for turn in self.inbox.held:
            self.attempts.senders.forget(turn)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, turn: Turn, attempt: int, seq: int) -> None:
        """Sends the acceptance again and again until it is answered; nothing starts before that."""
        backoff = Backoff(0.1, 2.0)
        message = Accept(epoch=turn[1], attempt=attempt, incarnation=self.incarnation, seq=seq)
        while turn in self.inbox.held and self.inbox.held[turn].phase is Phase.ACCEPTING:
            if not await self.accept_once(turn, message):
                await asyncio.sleep(backoff.next_s())

    async def accept_once(self, turn: Turn, message: Accept) -> bool:
        """Sends the acceptance; returns whether there was an answer that says something."""
        sent_at = boottime()
        try:
            answer = await self.client.accept(turn[0], message)
        except Unreachable:
            return False
        except Refused as problem:
            if isinstance(problem, TokenRejected) or problem.passing:
                return False
            if problem.code == "superseded":
                self.superseded()
            self.perform(self.inbox.refused(turn))
            return True
        self._accepted_at[turn] = sent_at
        self.perform(self.inbox.accepted(turn, cancelling=answer.status == "cancelling"))
        return True

    async def _run(self, offer: JobSubmit) -> None:
        turn = turn_of(offer)
        log.info("job %s: starting attempt %d on %s", offer.job_id, offer.attempt, _gpus(offer))
        ending = await self.attempts.put_in_place(
            offer, lambda: self.inbox.wants(turn), lambda fetching: self._tell_fetching(offer, fetching)
        )
        self._fetching_told_at.pop(turn, None)
        leased_at = max(self.heard_at, self._accepted_at.pop(turn, self.heard_at))
        ending = ending or await self.attempts.start(offer, self.lease_s, leased_at)
        if ending is None:
            self.perform(self.inbox.started(turn))
            ending = await self.attempts.ended(turn)
        log.info(
            "job %s: attempt %d ended (%s, code %s)", turn[0], offer.attempt, ending.reason, ending.exit_code
        )
        self.perform(self.inbox.ended(turn, ending))

    def watch_adopted(self, offer: JobSubmit) -> None:
        self._spawn(self._await_adopted(offer))

    async def _await_adopted(self, offer: JobSubmit) -> None:
        turn = turn_of(offer)
        if self.attempts.is_out_of_time(turn):
            self.out_of_time(turn)
        ending = await self.attempts.ended(turn)
        self.perform(self.inbox.ended(turn, ending))

    def judge_adopted(self, offer: JobSubmit, ending: AttemptEnding) -> None:
        """Reports an attempt that was found ended, once it is known how it is to be reported and nothing of it lives."""
        self._spawn(self._judge_adopted(offer, ending))

    async def _judge_adopted(self, offer: JobSubmit, ending: AttemptEnding) -> None:
        await self.attempts.left(offer)
        self.perform(self.inbox.ended(turn_of(offer), await self.attempts.judged(offer, ending)))

    def progress_report(self, turn: Turn, progress: dict[str, Any]) -> StatusReport | None:
        """Records how far the trainer is, and returns the report to send; None where none is wanted."""
        holding = self.inbox.held.get(turn)
        if holding is None or holding.phase is Phase.STARTING or not self.connected.is_set():
            return None
        self.inbox.progressed(turn, progress["step"])
        return StatusReport(
            status=ReportStatus.RUNNING,
            attempt=holding.offer.attempt,
            epoch=turn[1],
            progress=progress,
            incarnation=self.incarnation,
        )

    def _tell_fetching(self, offer: JobSubmit, fetching: FetchProgress) -> None:
        """Reports progress now and then: people want to see that it moves, not every byte."""
        turn, now = turn_of(offer), boottime()
        due_at = self._fetching_told_at.get(turn, 0.0) + TELL_FETCHING_EVERY_S
        if not fetching.total_bytes or now < due_at or not self.connected.is_set():
            return
        self._fetching_told_at[turn] = now
        report = fetching_report(offer, fetching.done_bytes, fetching.total_bytes, self.incarnation)
        self._spawn(self._tell(turn, report))

    async def _tell(self, turn: Turn, report: StatusReport) -> None:
        try:
            answer = await self.client.report(turn[0], report)
        except Refused as problem:
            if problem.code == "stale_attempt":
                self.perform(self.inbox.went_stale(turn))
        except Unreachable:
            log.debug("progress of job %s was not delivered", turn[0])
        else:
            if answer.stop:
                await self._heartbeat_soon()

    def nodes_changed(self) -> None:
        """Sends a heartbeat because a node came or went: its GPUs must not be assigned, or may be again."""
        if self.connected.is_set():
            self._spawn(self._heartbeat_soon())

    async def _heartbeat_soon(self) -> None:
        try:
            await self.heartbeat()
        except (Unreachable, Refused) as error:
            log.debug("no heartbeat now: %s", error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            log.error("a task of the agent failed", exc_info=task.exception())

    def _data_held(self) -> DataHeld | None:
        return self.attempts.data.held() if self.attempts.data else None

    def _registration(self, data: DataHeld | None) -> Register:
        return replace(
            self.machine.registration(),
            persistent=self.inbox.persistent,
            max_jobs=self.inbox.max_jobs,
            attempts=self.inbox.held_attempts(self.attempts.paused()),
            incarnation=self.incarnation,
            seq=self.inbox.next_seq(),
            audit_head=self.audit_memory.newest,
            audit_heads=self.audit_memory.shown(),
            data=data,
        )


def _gpus(offer: JobSubmit) -> str:
    return ", ".join(offer.gpus) or "the CPU"
