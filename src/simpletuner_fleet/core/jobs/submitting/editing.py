"""Edits a waiting job in place, by the same rules as a submission; it keeps its place in the queue.

Its config stays the copy that it was submitted with: whoever wants other settings clones the job. Nothing is decided
here that a placement could contradict: both are steps of one writer, and a job that was offered meanwhile is not
edited.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict, replace

from simpletuner_fleet.core.bounds import Count, FreeText, Name, Reading, Seconds, Whole
from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.errors import ApprovedAsItIs, WrongJobState
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.jobs.decision import NOTHING, Decision, job_event
from simpletuner_fleet.core.jobs.job import Attempt, Hold, Job, OnMaxCost, OnPartition, OnTimeLimit, Target
from simpletuner_fleet.core.jobs.start_time import read_start, shown, started_from
from simpletuner_fleet.core.jobs.states import WAITING
from simpletuner_fleet.core.jobs.submitting.submission import new_job
from simpletuner_fleet.core.jobs.submitting.submit_request import SubmitRequest, Submitter, permitted
from simpletuner_fleet.core.money.ceilings import room_of
from simpletuner_fleet.core.people.approvals import Approval
from simpletuner_fleet.core.people.teams import Team, check_use, priority_ceiling
from simpletuner_fleet.core.placement.ordering import class_id
from simpletuner_fleet.core.policy import Policy

OF_THE_WORKER = ("target", "gpus", "nodes", "min_vram_gb", "accelerator", "labels", "max_price_micros")
OF_THE_JOB = (
    *("name", "priority", "max_retries", "retry_on_failure", "time_limit_s", "on_time_limit"),
    *("on_partition", "max_cost_micros", "on_max_cost"),
)


class JobEdit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes a change to a waiting job; what is left out stays as it is."""

    name: FreeText | UnsetType | None = UNSET
    target: Target | UnsetType = UNSET
    worker_labels: dict[FreeText, FreeText] | UnsetType = UNSET
    gpus: Whole | UnsetType = UNSET
    nodes: Whole | UnsetType = UNSET
    min_vram_gb: Reading | UnsetType = UNSET
    accelerator: FreeText | UnsetType = UNSET
    max_price_micros: Count | UnsetType | None = UNSET
    """null: it may run whatever the machine costs."""
    priority: Whole | Name | UnsetType = UNSET
    max_retries: Whole | UnsetType = UNSET
    retry_on_failure: bool | UnsetType = UNSET
    time_limit_s: Seconds | UnsetType | None = UNSET
    on_time_limit: OnTimeLimit | UnsetType = UNSET
    on_partition: OnPartition | UnsetType = UNSET
    not_before: FreeText | UnsetType | None = UNSET
    """null: it starts as soon as it can."""
    max_cost_micros: Count | UnsetType | None = UNSET
    """null: it may cost any amount."""
    on_max_cost: OnMaxCost | UnsetType = UNSET

    @property
    def changes(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not UNSET}


def edited(
    job: Job,
    edit: JobEdit,
    by: Submitter,
    bundle: Bundle,
    policy: Policy,
    *,
    local_enabled: bool,
    now: float,
    last: Attempt | None = None,
    team: Team | None = None,
) -> Decision:
    """Returns the job as it would have been submitted with these changes, or raises what is wrong with them.

    `team` is the one that the job is for, `last` its last attempt.
    """
    if job.state not in WAITING:
        raise WrongJobState(f"The job is {job.state}; only a waiting job can be edited.", state=job.state)
    if policy.require_approval and not by.may_approve and job.hold is not Hold.APPROVAL:
        raise ApprovedAsItIs
    ceiling = priority_ceiling(team, by.ids, as_lead=by.may_lead)
    request = _request(job, edit, by, local_enabled=local_enabled, ceiling=ceiling)
    if team:
        check_use(team, trainer=bundle.trainer, target=request.target)
    anew = new_job(
        request,
        bundle,
        policy,
        job_id=job.id,
        seq=job.seq,
        config_name=job.config_name,
        config_version=job.config_version,
        owner=job.owner,
        hold=job.hold,
        now=job.created_at,
        datasets=job.requires.datasets,
    )
    asked = {name: getattr(anew.requires, name) for name in OF_THE_WORKER}
    room = room_of(anew.max_cost_micros, job.spent_micros)
    requires = replace(job.requires, **asked, room_micros=room)
    after = replace(
        job,
        **{name: getattr(anew, name) for name in OF_THE_JOB},
        requires=requires,
        class_id=class_id(requires) if requires != job.requires else job.class_id,
        rank=job.rank + (job.priority - anew.priority) * policy.priority_point_s,
        refused_by=job.refused_by if requires == job.requires else (),
    )
    if edit.not_before is not UNSET:
        start_at = read_start(edit.not_before or None, now)
        after = started_from(after, start_at, last, policy, now)
    if after == job:
        return NOTHING
    changed = _differences(job, after)
    return Decision(job=after, events=(job_event(EventType.JOB_EDITED, job, by.actor, changed=changed),))


def _request(job: Job, edit: JobEdit, by: Submitter, *, local_enabled: bool, ceiling: int) -> SubmitRequest:
    """Returns what would have to be submitted. Only what is changed must be permitted to whoever changes it."""
    requires, changes = job.requires, edit.changes
    allowed = permitted(
        SubmitRequest(**{name: changes[name] for name in ("target", "priority") if name in changes}),
        by,
        local_enabled=local_enabled,
        priority_ceiling=ceiling,
    )
    if "target" in changes:
        changes["target"] = allowed.target
    changes.pop("not_before", None)  # counted from this moment, not from the submission
    if changes.get("max_cost_micros", 0) is None:
        changes.setdefault("on_max_cost", "stop")
    as_it_is = SubmitRequest(
        target=requires.target,
        worker_labels=dict(requires.labels),
        gpus=requires.gpus,
        nodes=requires.nodes,
        min_vram_gb=requires.min_vram_gb,
        accelerator=requires.accelerator,
        max_price_micros=requires.max_price_micros,
        priority=job.priority,
        max_retries=job.max_retries,
        retry_on_failure=job.retry_on_failure,
        time_limit_s=job.time_limit_s,
        on_time_limit=job.on_time_limit,
        on_partition=job.on_partition,
        max_cost_micros=job.max_cost_micros,
        on_max_cost=job.on_max_cost,
        name=job.name,
    )
    return replace(as_it_is, **changes)


def check_approval(before: Job, after: Job, pending: Approval | None, needed: Approval | None) -> None:
    """Refuses an edit that would need another approval than the job was shown for: it must be submitted anew.

    `pending` is what the job waits for now, `needed` what it would wait for, submitted as it is after the edit.
    """
    if (before.requires, before.time_limit_s) == (after.requires, after.time_limit_s):
        return
    if before.hold is Hold.APPROVAL:
        asked = pending.requirements if pending else ()
        if (pending and pending.votes) or (needed.requirements if needed else ()) != asked:
            raise ApprovedAsItIs
    elif needed:
        raise ApprovedAsItIs


def _differences(before: Job, after: Job) -> dict[str, Any]:
    """Returns what was changed and to what, in the terms of the request."""
    own = {name: getattr(after, name) for name in OF_THE_JOB}
    asked = {name: getattr(after.requires, name) for name in OF_THE_WORKER}
    changed = {name: value for name, value in own.items() if value != getattr(before, name)}
    changed |= {name: value for name, value in asked.items() if value != getattr(before.requires, name)}
    if before.start_at != after.start_at:
        changed["not_before"] = None if after.start_at is None else shown(after.start_at)
    if "labels" in changed:
        changed["labels"] = dict(changed["labels"])
    return {name: str(value) if isinstance(value, Target) else value for name, value in changed.items()}
