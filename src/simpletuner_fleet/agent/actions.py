"""Defines the actions that the inbox answers with, one type for each thing that the agent is to do."""

from msgspec import Struct

from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.protocol.messages import JobSubmit, StatusReport


def turn_of(offer: JobSubmit) -> Turn:
    return Turn(offer.job_id, offer.epoch)


class SendAccept(Struct, frozen=True):
    turn: Turn
    attempt: int
    seq: int


class StartTrainer(Struct, frozen=True):
    offer: JobSubmit


class StopTrainer(Struct, frozen=True):
    turn: Turn
    grace_s: float
    why: EndReason
    save_s: float | None = None
    """How long to wait for a checkpoint before; None: only as far as the grace allows."""


class AskForCheckpoint(Struct, frozen=True):
    """Asks the trainer for a checkpoint. The trainer goes on training."""

    turn: Turn
    asked_at: float


class AskForValidation(Struct, frozen=True):
    """Asks the trainer to validate.

    The trainer goes on training; once it is asked, the orchestrator is told so.
    """

    turn: Turn
    asked_at: float


class SendReport(Struct, frozen=True):
    """Sends a status report. A final one is kept on disk until it is answered."""

    turn: Turn
    report: StatusReport
    final: bool


class Forget(Struct, frozen=True):
    """Forgets a turn for which nothing is owed any more. Its shim and its folder may go."""

    turn: Turn


class Leave(Struct, frozen=True):
    reason: str


Action = (
    SendAccept
    | StartTrainer
    | StopTrainer
    | AskForCheckpoint
    | AskForValidation
    | SendReport
    | Forget
    | Leave
)
