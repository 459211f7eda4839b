"""Shows how far a trainer is that was asked to stop, to save or to validate."""

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Attempt, Stopping
from simpletuner_fleet.http.edge.routes import rfc3339

DOING = {"cancelled": "cancelling", "drained": "leaving its worker", "cost_limit": "near its cost limit"}


class StoppingView(Struct, kw_only=True):
    reason: str
    """cancelled, drained or cost_limit."""
    since: str | None
    checkpoint_first: bool
    sentence: str


def stopping_view(attempt: Attempt) -> StoppingView | None:
    """Returns how the stop goes on; None once the attempt has ended, since then its outcome says it."""
    stopping = attempt.stopping
    if stopping is None or not attempt.live:
        return None
    return StoppingView(
        reason=stopping.reason,
        since=rfc3339(stopping.asked_at),
        checkpoint_first=bool(stopping.save_s),
        sentence=f"{DOING[stopping.reason]}: {_doing_now(stopping, attempt.checkpoint_step)}",
    )


def _doing_now(stopping: Stopping, stored: int | None) -> str:
    if not stopping.save_s:
        return "stopping the trainer"
    if stored is not None and stored != stopping.had_step:
        return f"the checkpoint of step {stored:,} is stored, stopping the trainer"
    return "saving a checkpoint first"


def checkpoint_requested_at(attempt: Attempt | None) -> str | None:
    """Returns when a checkpoint was asked for; None once a newer one is stored, and once the attempt has ended."""
    saving = attempt.saving if attempt and attempt.waits_for_checkpoint else None
    return rfc3339(saving.asked_at) if saving else None


def validation_requested_at(attempt: Attempt | None) -> str | None:
    """Returns when a validation was asked for; None once the trainer was told, and once the attempt has ended."""
    validating = attempt.validating if attempt and attempt.waits_for_validation else None
    return rfc3339(validating.asked_at) if validating else None
