"""Describes the state of a job in one sentence, and the end of an attempt in another."""

from simpletuner_fleet.core.cutting import first_line
from simpletuner_fleet.core.jobs.job import FINISHING, Attempt, AttemptState, Job, JobState, Outcome, Results
from simpletuner_fleet.languages import N_, _, current
from simpletuner_fleet.languages.code_texts import reason_text
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.languages.names import failure_name
from simpletuner_fleet.queries.read_models import SeenJob

OUTCOMES = {
    Outcome.COMPLETED: N_("completed"),
    Outcome.FAILED: N_("failed"),
    Outcome.LOST: N_("its worker was lost"),
    Outcome.RELEASED: N_("given back"),
    Outcome.CANCELLED: N_("cancelled"),
    Outcome.EXPIRED_OFFER: N_("not accepted in time"),
}


def state_sentence(info: SeenJob) -> str:
    job, attempt = info.job, info.attempt
    worker = attempt.worker_name if attempt else ""
    match job.state:
        case JobState.QUEUED | JobState.BLOCKED:
            return reason_text(current(), info.explanation) if info.explanation else ""
        case JobState.DISPATCHED:
            return _("Offered to %(worker)s, which has not accepted yet.", worker=worker)
        case JobState.RUNNING:
            return _running(job, attempt, worker)
        case JobState.CANCELLING:
            return _cancelling(attempt)
        case JobState.COMPLETED:
            return _completed(job, worker)
        case JobState.FAILED:
            return _failed(job, attempt)
        case JobState.CANCELLED:
            return _("Cancelled.")


def _running(job: Job, attempt: Attempt | None, worker: str) -> str:
    if job.phase == FINISHING:
        return _finishing(job, worker)
    if attempt and attempt.resumed_from_step is not None:
        return _(
            "On %(worker)s: attempt %(number)s, resumed from step %(step)s.",
            worker=worker,
            number=attempt.number,
            step=attempt.resumed_from_step,
        )
    if attempt and attempt.number > 1:
        return _("On %(worker)s: attempt %(number)s, from the start.", worker=worker, number=attempt.number)
    return _("On %(worker)s.", worker=worker)


def _completed(job: Job, worker: str) -> str:
    if job.results is Results.MISSING:
        return _(
            "Completed, but its results are MISSING: they exist only on the disk of %(worker)s.",
            worker=worker,
        )
    return _("Completed on %(worker)s.", worker=worker) if worker else _("Completed.")


def _finishing(job: Job, worker: str) -> str:
    why = job.progress.more.get("waiting_for") if job.progress else None
    if why:
        return _(
            "Trained on %(worker)s; its results are not stored yet: %(why)s", worker=worker, why=str(why)
        )
    return _("Trained on %(worker)s; its results are being uploaded.", worker=worker)


def _cancelling(attempt: Attempt | None) -> str:
    if attempt and attempt.stopping and attempt.stopping.save_s is not None:
        return _("Cancelling: saving a checkpoint first.")
    return _("Cancelling: stopping the trainer.")


def _failed(job: Job, attempt: Attempt | None) -> str:
    if attempt and attempt.failure_class:
        return failure_name(current(), attempt.failure_class)
    return detail_text(current(), first_line(job.error or ""))


def outcome_text(attempt: Attempt) -> str:
    if attempt.outcome is not None:
        return _(OUTCOMES[attempt.outcome])
    return _("offered") if attempt.state is AttemptState.OFFERED else _("running")


def outcome_name(outcome: str) -> str:
    """Names how an attempt ended; an empty outcome means that it has not ended."""
    return _(OUTCOMES[Outcome(outcome)]) if outcome else _("running")


def began_text(attempt: Attempt) -> str:
    if attempt.resumed_from_step is None:
        return _("from the start")
    return _("resumed from step %(step)s", step=attempt.resumed_from_step)
