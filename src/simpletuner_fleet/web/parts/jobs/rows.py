"""Describes a job in one row, for lists and the overview: how far it is, where, and why not further."""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from simpletuner_fleet.core.cutting import first_line
from simpletuner_fleet.core.jobs.job import Job, JobState, Results
from simpletuner_fleet.core.jobs.progress import Progress
from simpletuner_fleet.core.jobs.states import WAITING
from simpletuner_fleet.languages import _, current, ngettext
from simpletuner_fleet.languages.code_texts import reason_text
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.languages.numbers import in_language
from simpletuner_fleet.queries.read_models import SeenJob

WAITS = frozenset(WAITING)
LINE_CHARS = 200


class Steps(Struct, frozen=True, kw_only=True):
    """Says how far a job is, as its trainer last reported. Any of it may be missing."""

    step: int | None = None
    total: int | None = None
    loss: float | None = None
    rate: float | None = None
    eta_s: float | None = None
    at_risk: int | None = None
    """Steps since the newest checkpoint that is off the worker; only of a job that runs."""
    phase: str = ""


class JobRow(Struct, frozen=True, kw_only=True):
    id: str
    title: str
    config: str
    status: str
    owner: str
    """Their name, where it was looked up."""
    tags: tuple[str, ...]
    priority: int
    gpus: int
    worker: str | None
    worker_id: str | None
    steps: Steps
    line: str
    """Why it waits, what went wrong, or how it goes on: one sentence, or nothing."""
    hopeless: bool
    """No worker could ever take it."""
    position: int | None
    attempt: int
    created_at: float
    started_at: float | None
    finished_at: float | None
    may_steer: bool
    """The reader may act on it; otherwise it can only be looked at and compared."""
    may_cancel: bool
    may_retry: bool
    may_delete: bool


def job_row(
    info: SeenJob, owners: Mapping[str, str] = MappingProxyType({}), *, may_steer: bool = False
) -> JobRow:
    job = info.job
    return JobRow(
        id=job.id,
        title=job.name or job.config_name,
        config=job.config_name,
        status=job.state,
        owner=owners.get(job.owner, job.owner),
        tags=job.tags,
        priority=job.priority,
        gpus=job.requires.gpus,
        worker=info.attempt.worker_name if info.attempt else None,
        worker_id=job.worker_id,
        steps=steps_of(job, info.checkpoint_step),
        line=line_of(info),
        hopeless=bool(info.explanation and info.explanation.kind == "change"),
        position=info.position,
        attempt=job.attempts,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        may_steer=may_steer,
        may_cancel=may_steer and not job.terminal,
        may_retry=may_steer and job.terminal,
        may_delete=may_steer and job.terminal,
    )


def steps_of(job: Job, checkpoint_step: int | None) -> Steps:
    progress = job.progress or Progress()
    step, runs = progress.step, job.state is JobState.RUNNING
    return Steps(
        step=step,
        total=progress.total or None,
        loss=None if isinstance(progress.loss, str) else progress.loss,
        rate=progress.rate,
        eta_s=progress.eta_s if runs else None,
        at_risk=max(0, step - (checkpoint_step or 0)) if runs and step is not None else None,
        phase=progress.phase or "",
    )


def line_of(info: SeenJob) -> str:
    job = info.job
    if info.explanation and job.state in WAITS:
        return reason_text(current(), info.explanation)
    error = first_line(job.error or "")
    if error and (job.state is not JobState.COMPLETED or job.results is Results.MISSING):
        return detail_text(current(), error[:LINE_CHARS])
    if info.attempt and info.attempt.resumed_from_step is not None and not job.terminal:
        return _(
            "attempt %(number)s, resumed from step %(step)s on %(worker)s",
            number=info.attempt.number,
            step=info.attempt.resumed_from_step,
            worker=info.attempt.worker_name,
        )
    return ""


def pace_text(rate: float | None) -> str:
    if not rate or rate <= 0:
        return ""
    if rate >= 1:
        return _("%(rate)s steps/s", rate=in_language(current().lang, f"{rate:.3g}"))
    return _("%(rate)s s/step", rate=in_language(current().lang, f"{1 / rate:.3g}"))


def risk_text(steps: Steps) -> str:
    if steps.at_risk is None:
        return ""
    return ngettext("%(n)s step at risk", "%(n)s steps at risk", steps.at_risk)
