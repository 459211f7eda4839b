"""Decides what the agent does about everything that it is told, and remembers which attempts it holds.

It is pure: it is told what happened, and answers with actions. An attempt is offered, accepted, started, and ends
with one report that is kept until it is delivered. Whatever is told twice, too late or of another turn changes
nothing.
"""

from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct

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
from simpletuner_fleet.agent.attempts.endings import AttemptEnding, final_report
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.core.workers.interruption import HandBack
from simpletuner_fleet.protocol.messages import (
    LEAVING,
    CheckpointNow,
    HeldAttempt,
    HeldState,
    JobSubmit,
    Orders,
    ReportStatus,
    StatusReport,
    StopAttempt,
    ValidateNow,
)

REMEMBERED_TURNS = 256
REMEMBERED_REQUESTS = 16


class Phase(StrEnum):
    ACCEPTING = "accepting"
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"


TIME_LIMIT_GRACE_S = 30.0


class Holding(Struct):
    offer: JobSubmit
    phase: Phase
    stopping: EndReason | None = None
    saves: bool = False
    """Whether the stop under way waits for a checkpoint: only then can it be hurried."""
    step: int | None = None
    checkpoint_step: int | None = None
    saves_asked: dict[float, bool] = {}
    """The last requests for a checkpoint, by when they were made: one that arrives late, after a newer one, is known."""
    validations_asked: dict[float, bool] = {}
    """The last requests for a validation, and whether the trainer was asked; the orchestrator may not know that yet."""


class Inbox:
    def __init__(self, *, persistent: bool, max_jobs: int = 1, release_grace_s: float = 10.0) -> None:
        self.persistent = persistent
        self.max_jobs = max_jobs
        self.draining = False
        self.leaving: str | None = None
        self.held: dict[Turn, Holding] = {}
        self._release_grace_s = release_grace_s
        self._seq = 0
        self._jobs_done = 0
        self._over: dict[Turn, None] = {}
        self._reported: set[Turn] = set()
        """Of an earlier process, with nothing left here but a final report that is under way."""

    def next_seq(self) -> int:
        """Numbers registrations and acceptances, so that an old one that arrives late is known as such."""
        self._seq += 1
        return self._seq

    @property
    def status(self) -> str:
        """Returns the status that heartbeats report of this worker."""
        if self.leaving:
            return LEAVING
        return "busy" if self.held else "idle"

    def held_attempts(self, paused: Collection[Turn]) -> list[HeldAttempt]:
        return [
            HeldAttempt(
                job_id=turn[0],
                epoch=turn[1],
                attempt=holding.offer.attempt,
                state=HeldState(holding.phase.value),
                step=holding.step,
                checkpoint_step=holding.checkpoint_step,
                paused=turn in paused,
            )
            for turn, holding in self.held.items()
        ]

    def adopted(self, offer: JobSubmit, phase: Phase) -> None:
        """Takes up an attempt of an earlier process that was found alive or finished."""
        self.held[turn_of(offer)] = Holding(offer, phase)

    def reported_before(self, turn: Turn) -> None:
        """Notes that an earlier process has said how this turn ended. Until that arrives it may be offered once more.

        What began then would be ended by that report for everybody but this worker.
        """
        if turn not in self.held:
            self._reported.add(turn)

    def has_its_report_alone(self, turn: Turn) -> bool:
        """Tells whether nothing but its report was found of it: nobody knows what of its results was sent."""
        return turn in self._reported

    def heard(self, orders: Orders) -> list[Action]:
        actions: list[Action] = []
        for stop in orders.stop:
            actions += self.told_to_stop(stop)
        for save in orders.save:
            actions += self.told_to_save(save)
        for request in orders.validate:
            actions += self.told_to_validate(request)
        self.draining = orders.drain
        for offer in orders.jobs:
            actions += self.offered(offer)
        if orders.shutdown:
            actions += self.told_to_leave("the orchestrator asked for it")
        return actions

    def offered(self, offer: JobSubmit) -> list[Action]:
        turn = turn_of(offer)
        if turn in self.held or turn in self._reported or turn in self._over or self._has_moved_on(offer):
            return []
        if self.leaving:
            self._remember(turn)
            return [self._report(turn, StatusReport(status=ReportStatus.RELEASED, error=self.leaving))]
        occupied = self._occupied()
        older = [held for held in occupied if held[0] == offer.job_id]
        if older:
            return [action for held in older for action in self.went_stale(held)]
        if len(occupied) >= self.max_jobs or not self._gpus_lived_on().isdisjoint(offer.gpus):
            return []
        self.held[turn] = Holding(offer, Phase.ACCEPTING)
        return [SendAccept(turn, offer.attempt, self.next_seq())]

    def _has_moved_on(self, offer: JobSubmit) -> bool:
        """Tells whether a newer attempt of its job is known here: then the offer has come late, and nobody waits for it."""
        return any(
            turn.job_id == offer.job_id and turn.epoch > offer.epoch for turn in (*self.held, *self._over)
        )

    def _occupied(self) -> list[Turn]:
        """Returns the attempts that take a place here.

        One that has ended takes none: its processes are gone, and only its report is under way. The orchestrator may
        have placed the next job before its answer to that report arrives, or after an answer that never arrives. A
        worker that leaves after its job takes no other one meanwhile.
        """
        if not self.persistent:
            return list(self.held)
        return [turn for turn, holding in self.held.items() if holding.phase is not Phase.FINISHED]

    def _gpus_lived_on(self, *, stopping: EndReason | None = None) -> set[str]:
        """Returns the GPUs on which processes of attempts may live, or of those that stop for this reason."""
        return {
            uuid
            for holding in self.held.values()
            if holding.phase in (Phase.STARTING, Phase.RUNNING)
            if stopping is None or holding.stopping is stopping
            for uuid in holding.offer.gpus
        }

    def gpus_not_left(self) -> set[str]:
        """Returns the GPUs that count as free, and on which something lives that has not ended yet or does not die."""
        return self._gpus_lived_on(stopping=EndReason.STALE)

    def accepted(self, turn: Turn, *, cancelling: bool = False) -> list[Action]:
        holding = self.held.get(turn)
        if holding is None or holding.phase is not Phase.ACCEPTING:
            return []
        if cancelling:
            holding.stopping = EndReason.CANCELLED
        if holding.stopping:
            return self._end(turn, holding, AttemptEnding(reason=EndReason.STOPPED))
        holding.phase = Phase.STARTING
        return [StartTrainer(holding.offer)]

    def refused(self, turn: Turn) -> list[Action]:
        """Drops an attempt whose offer was taken back before we accepted it."""
        holding = self.held.get(turn)
        if holding is None or holding.phase is not Phase.ACCEPTING:
            return []
        return self._drop(turn)

    def started(self, turn: Turn) -> list[Action]:
        holding = self.held.get(turn)
        if holding is None or holding.phase is not Phase.STARTING:
            return []
        holding.phase = Phase.RUNNING
        if holding.stopping:
            return [StopTrainer(turn, 0.0, holding.stopping)]
        return [self._report(turn, StatusReport(status=ReportStatus.RUNNING))]

    def progressed(self, turn: Turn, step: int) -> None:
        holding = self.held.get(turn)
        if holding:
            holding.step = step

    def stored(self, turn: Turn, step: int) -> None:
        """Records a checkpoint that is safely off this machine."""
        holding = self.held.get(turn)
        if holding:
            holding.checkpoint_step = step

    def wants(self, turn: Turn) -> bool:
        """Returns whether what is being prepared for it is still needed."""
        holding = self.held.get(turn)
        return holding is not None and holding.stopping is None

    def ended(self, turn: Turn, ending: AttemptEnding) -> list[Action]:
        holding = self.held.get(turn)
        if holding is None or holding.phase in (Phase.ACCEPTING, Phase.FINISHED):
            return []
        return self._end(turn, holding, ending)

    def delivered(self, turn: Turn) -> list[Action]:
        """Drops an attempt whose final report was answered, whatever the answer."""
        if turn in self._reported:
            self._reported.remove(turn)
            self._remember(turn)
        holding = self.held.get(turn)
        if holding is None or holding.phase is not Phase.FINISHED:
            return []
        self._jobs_done += 1
        return self._drop(turn)

    def told_to_stop(self, order: StopAttempt) -> list[Action]:
        turn = Turn(order.job_id, order.epoch)
        if order.reason is EndReason.STALE:
            return self.went_stale(turn)
        why = EndReason.DRAINED if order.reason is EndReason.DRAINED else EndReason.CANCELLED
        return self._stop(turn, why, order.grace_s, order.save_s)

    def told_to_save(self, order: CheckpointNow) -> list[Action]:
        """Asks the trainer for a checkpoint. Before it runs nothing is noted: the request comes again."""
        turn = Turn(order.job_id, order.epoch)
        holding = self.held.get(turn)
        if holding is None or holding.phase is not Phase.RUNNING or holding.stopping:
            return []
        if not _is_new(holding.saves_asked, order.asked_at):
            return []
        return [AskForCheckpoint(turn, order.asked_at)]

    def could_not_ask(self, turn: Turn, asked_at: float) -> None:
        """Forgets the request, so that the trainer is asked anew when it comes again."""
        holding = self.held.get(turn)
        if holding:
            holding.saves_asked.pop(asked_at, None)

    def told_to_validate(self, order: ValidateNow) -> list[Action]:
        """Asks the trainer to validate. If the same request comes again, it reports again that the trainer was asked.

        The orchestrator has not received that report then.
        """
        turn = Turn(order.job_id, order.epoch)
        holding = self.held.get(turn)
        if holding is None or holding.phase is not Phase.RUNNING or holding.stopping:
            return []
        if _is_new(holding.validations_asked, order.asked_at):
            return [AskForValidation(turn, order.asked_at)]
        passed_on = holding.validations_asked[order.asked_at]
        return [self._validation_report(turn, order.asked_at)] if passed_on else []

    def asked_to_validate(self, turn: Turn, asked_at: float, *, heard: bool) -> list[Action]:
        """Reports that the trainer was asked. If it could not be, it is asked anew when the request comes again."""
        holding = self.held.get(turn)
        if holding is None or holding.validations_asked.get(asked_at) is not False:
            return []
        if not heard:
            del holding.validations_asked[asked_at]
            return []
        holding.validations_asked[asked_at] = True
        return [self._validation_report(turn, asked_at)]

    def _validation_report(self, turn: Turn, asked_at: float) -> Action:
        return self._report(turn, StatusReport(status=ReportStatus.RUNNING, validation_asked_at=asked_at))

    def out_of_time(self, turn: Turn) -> list[Action]:
        """Stops an attempt whose time limit is reached. It is to go on later, so it saves a checkpoint first."""
        holding = self.held.get(turn)
        save_s = holding.offer.checkpoint_wait_s if holding else None
        return self._stop(turn, EndReason.TIME_LIMIT, TIME_LIMIT_GRACE_S, save_s)

    def went_stale(self, turn: Turn) -> list[Action]:
        """Stops a turn whose job has moved on: nothing of it may go on, and nobody wants its report.

        What has ended waits for the answer to its report all the same: it may have been that report that moved the job.
        """
        holding = self.held.get(turn)
        if holding and holding.phase is Phase.ACCEPTING:
            return self._drop(turn)
        return self._stop(turn, EndReason.STALE, 0.0)

    def told_to_leave(self, reason: str) -> list[Action]:
        """Leaves at the orchestrator's request, once nothing runs."""
        self.draining = True
        if self.held:
            return []
        self.leaving = self.leaving or reason
        return [Leave(self.leaving)]

    def terminated(self, reason: str) -> list[Action]:
        """Gives everything back, because the worker must be gone now."""
        return self._give_all_back(reason, EndReason.PREEMPTED, self._release_grace_s)

    def machine_ends(self, reason: str, plan: HandBack) -> list[Action]:
        """Gives everything back because the machine is taken away, after a checkpoint where there is time for one."""
        return self._give_all_back(reason, EndReason.INTERRUPTED, plan.grace_s, plan.save_s)

    def out_of_patience(self) -> list[Action]:
        """Ends whatever still runs or saves at once, because the machine's end is near."""
        return [action for turn in list(self.held) for action in self._stop(turn, EndReason.INTERRUPTED, 0.0)]

    def _give_all_back(
        self, reason: str, why: EndReason, grace_s: float, save_s: float | None = None
    ) -> list[Action]:
        self.leaving = self.leaving or reason
        actions: list[Action] = []
        for turn, holding in list(self.held.items()):
            if holding.phase is Phase.ACCEPTING:
                holding.stopping = holding.stopping or why
                actions += self._end(turn, holding, AttemptEnding(reason=EndReason.STOPPED))
            else:
                actions += self._stop(turn, why, grace_s, save_s)
        return actions or ([] if self.held else [Leave(self.leaving)])

    def _stop(self, turn: Turn, why: EndReason, grace_s: float, save_s: float | None = None) -> list[Action]:
        """Stops an attempt. One that is stopping already can be given less time, but never more."""
        holding = self.held.get(turn)
        if holding is None or holding.phase is Phase.FINISHED or holding.stopping is EndReason.STALE:
            return []
        if holding.stopping and save_s is not None:
            return []
        if holding.stopping is why and not holding.saves:
            return []
        if holding.stopping is None or why is EndReason.STALE:
            holding.stopping = why
        if holding.phase is not Phase.RUNNING:
            return []
        holding.saves = save_s is not None
        return [StopTrainer(turn, grace_s, why, save_s)]

    def _end(self, turn: Turn, holding: Holding, ending: AttemptEnding) -> list[Action]:
        if holding.stopping is EndReason.STALE:
            return self._drop(turn)
        holding.phase = Phase.FINISHED
        return [self._report(turn, final_report(holding.stopping, ending, holding.offer.on_time_limit))]

    def _report(self, turn: Turn, report: StatusReport) -> SendReport:
        report.epoch = turn[1]
        holding = self.held.get(turn)
        report.attempt = holding.offer.attempt if holding else None
        final = report.status is not ReportStatus.RUNNING
        return SendReport(turn, report, final)

    def _drop(self, turn: Turn) -> list[Action]:
        del self.held[turn]
        self._remember(turn)
        actions: list[Action] = [Forget(turn)]
        if not self.held and self._wants_to_leave():
            self.leaving = self.leaving or "its job is done"
            actions.append(Leave(self.leaving))
        return actions

    def _wants_to_leave(self) -> bool:
        return self.leaving is not None or (not self.persistent and self._jobs_done > 0)

    def _remember(self, turn: Turn) -> None:
        self._over[turn] = None
        if len(self._over) > REMEMBERED_TURNS:
            del self._over[next(iter(self._over))]


def _is_new(asked: dict[float, bool], asked_at: float) -> bool:
    """Notes the request. Returns whether it was not known: one may come again at any time, and after a newer one."""
    if asked_at in asked:
        return False
    while len(asked) >= REMEMBERED_REQUESTS:
        del asked[next(iter(asked))]
    asked[asked_at] = False
    return True
