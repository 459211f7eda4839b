"""Builds a job from a request and a config, and a new job from an ended one that is tried again."""

from collections.abc import Mapping, Sequence

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from simpletuner_fleet.core.configs.bundle import Bundle, check_gpus, check_nodes, gpus_of, nodes_of
from simpletuner_fleet.core.errors import Invalid, WrongJobState
from simpletuner_fleet.core.jobs.job import REJECTED, Hold, Job, JobState, Requirements
from simpletuner_fleet.core.jobs.start_time import held, read_start
from simpletuner_fleet.core.jobs.submitting import going_on
from simpletuner_fleet.core.jobs.submitting.submit_request import (
    ChosenConfig,
    SubmitRequest,
    Submitter,
    check_trainer,
    permitted_target,
    read_priority,
)
from simpletuner_fleet.core.money.ceilings import room_of
from simpletuner_fleet.core.money.prices import checked_price
from simpletuner_fleet.core.people.teams import Team, check_use, visibility_of
from simpletuner_fleet.core.placement.ordering import class_id, rank
from simpletuner_fleet.core.policy import (
    MAX_DEPENDENCIES,
    MAX_LABEL_KEY_CHARS,
    MAX_LABEL_VALUE_CHARS,
    MAX_LABELS,
    MAX_RETRIES,
    Policy,
)
from simpletuner_fleet.core.training.checkpoint import StoredManifest


def check_labels(labels: dict[str, str], path: str) -> dict[str, str]:
    if len(labels) > MAX_LABELS:
        raise Invalid(f"There can be at most {MAX_LABELS} labels.", path=path)
    for key, value in labels.items():
        if not 1 <= len(key) <= MAX_LABEL_KEY_CHARS or not key.isprintable() or key != key.strip():
            raise Invalid(
                f"A label key must have 1 to {MAX_LABEL_KEY_CHARS} printable characters.", path=path
            )
        if len(value) > MAX_LABEL_VALUE_CHARS or not value.isprintable():
            raise Invalid(
                f"A label value can have at most {MAX_LABEL_VALUE_CHARS} printable characters.",
                path=f"{path}.{key}",
            )
    return labels


def requirements(
    request: SubmitRequest,
    bundle: Bundle,
    owner: str,
    datasets: tuple[tuple[str, int], ...] = (),
    team: str = "",
) -> Requirements:
    vram = request.min_vram_gb if request.min_vram_gb is not None else bundle.resources.min_vram_gb
    if vram is not None and vram < 0:
        raise Invalid("min_vram_gb must be 0 or more.", path="$.min_vram_gb")
    gpus = check_gpus(request.gpus, "$.gpus") if request.gpus is not None else gpus_of(bundle)
    asked_nodes = request.nodes if request.nodes is not None else nodes_of(bundle)
    labels = request.worker_labels
    return Requirements(
        target=request.target,
        gpus=gpus,
        min_vram_gb=float(vram or 0),
        accelerator=""
        if request.any_gpu
        else (request.accelerator or bundle.resources.accelerator or "").lower(),
        trainer=bundle.trainer,
        labels=tuple(sorted(check_labels(labels, "$.worker_labels").items())) if labels else (),
        owner=owner,
        datasets=datasets,
        secrets=tuple(sorted(set(bundle.secrets.values()))) if bundle.secrets else (),
        team=team,
        max_price_micros=request.max_price_micros,
        room_micros=request.max_cost_micros,
        nodes=check_nodes(asked_nodes, gpus, "$.nodes"),
    )


class Facts(Struct, frozen=True, kw_only=True):
    """Holds what is stored about everything a job names: secrets, datasets, other jobs, a checkpoint, a team."""

    secrets: frozenset[str] = frozenset()
    """The names, among those that the config asks for, of the secrets there are."""
    withheld_secrets: frozenset[str] = frozenset()
    """Those of them that are for others' jobs."""
    datasets: tuple[tuple[str, int], ...] = ()
    """Id and size in bytes of each dataset."""
    dependencies: Mapping[str, Job] = {}
    """The jobs it depends on, by id; one that does not exist is missing here."""
    resume: StoredManifest | None = None
    """The checkpoint of another job that it goes on from."""
    never_approved: bool = False
    """It tries a job again that was cancelled while it waited for an approval."""
    team: Team | None = None
    """The team that it is for."""


def decide_submission(
    request: SubmitRequest,
    by: Submitter,
    config: ChosenConfig,
    facts: Facts,
    policy: Policy,
    *,
    job_id: str,
    seq: int,
    now: float,
) -> Job:
    """Returns the job that a permitted request makes, or raises what is wrong with it."""
    check_secrets(config.bundle, facts)
    check_trainer(config.bundle, by)
    if facts.team:
        check_use(facts.team, trainer=config.bundle.trainer, target=request.target)
    dependencies = _dependencies(request.depends_on, facts)
    return new_job(
        request,
        config.bundle,
        policy,
        job_id=job_id,
        seq=seq,
        config_name=config.name,
        config_version=config.version,
        owner=by.owns_as or by.actor.id,
        hold=_hold(dependencies, approval_needed=policy.require_approval and not by.may_approve),
        now=now,
        datasets=facts.datasets,
        resume_from=going_on.described(facts.resume) if facts.resume else None,
        team=facts.team,
    )


def _check_publish_secret(name: str, facts: Facts) -> None:
    if name in facts.withheld_secrets:
        raise Invalid(
            f"The secret '{name}' is reserved for other users' jobs.",
            path="$.publish.secret",
            next_step="Ask its owner to allow you as well: 'simpletuner secrets set NAME --for YOU'.",
        )
    if name not in facts.secrets:
        raise Invalid(
            f"Publishing the model needs the secret '{name}', but it does not exist.",
            path="$.publish.secret",
            next_step=f"Store it with 'simpletuner secrets set {name}'.",
        )


def check_secrets(bundle: Bundle, facts: Facts) -> None:
    """Refuses a secret that is not stored, or that is not for this job's owner."""
    if bundle.publish and bundle.publish.secret:
        _check_publish_secret(bundle.publish.secret, facts)
    for variable, name in bundle.secrets.items():
        if name in facts.withheld_secrets:
            raise Invalid(
                f"The secret '{name}' is reserved for other users' jobs.",
                path=f"$.secrets.{variable}",
                next_step="Ask its owner to allow you as well: 'simpletuner secrets set NAME --for YOU'.",
            )
        if name not in facts.secrets:
            raise Invalid(
                f"The config needs the secret '{name}' as {variable}, but it does not exist.",
                path=f"$.secrets.{variable}",
                next_step=f"Store it with 'simpletuner secrets set {name}', or reference another in the "
                "config.",
            )


def _dependencies(job_ids: Sequence[str], facts: Facts) -> list[Job]:
    """Returns the jobs to wait for, and refuses one that has ended badly: to wait for it would be in vain."""
    awaited = []
    for job_id in job_ids:
        job = facts.dependencies.get(job_id)
        if job is None:
            raise Invalid(f"There is no job {job_id} to depend on.", path="$.depends_on")
        if job.terminal and job.state is not JobState.COMPLETED:
            raise Invalid(
                f"Job {job_id} ended as {job.state}, so this job can never start.",
                path="$.depends_on",
                next_step=f"Retry {job_id}, and submit this one so that it depends on the new job.",
            )
        awaited.append(job)
    return awaited


def _still_there(old: Job, facts: Facts) -> tuple[str, ...]:
    """Returns what a retry waits for: of a job that was offered all have completed, and those deleted since are left out."""
    if not old.attempts:
        return old.depends_on
    return tuple(job_id for job_id in old.depends_on if job_id in facts.dependencies)


def _hold(dependencies: Sequence[Job], *, approval_needed: bool) -> Hold:
    if approval_needed:
        return Hold.APPROVAL
    for job in dependencies:
        if not job.terminal:
            return Hold.DEPENDENCY
    return Hold.NONE


def new_job(
    request: SubmitRequest,
    bundle: Bundle,
    policy: Policy,
    *,
    job_id: str,
    seq: int,
    config_name: str,
    config_version: int,
    owner: str,
    hold: Hold,
    now: float,
    datasets: tuple[tuple[str, int], ...] = (),
    resume_from: str | None = None,
    team: Team | None = None,
) -> Job:
    """Builds the job; `hold` says what it waits for before it may queue, and `datasets` are ids and sizes."""
    requires = requirements(request, bundle, owner, datasets, team.id if team else "")
    priority = read_priority(request.priority)
    retries = policy.max_retries if request.max_retries is None else request.max_retries
    if not 0 <= retries <= MAX_RETRIES:
        raise Invalid(f"max_retries must be between 0 and {MAX_RETRIES}.", path="$.max_retries")
    if request.time_limit_s is not None and request.time_limit_s <= 0:
        raise Invalid("time_limit_s must be more than 0.", path="$.time_limit_s")
    if request.on_time_limit == "requeue" and request.time_limit_s is None:
        raise Invalid("on_time_limit 'requeue' needs a time_limit_s.", path="$.on_time_limit")
    if request.on_max_cost == "finish" and request.max_cost_micros is None:
        raise Invalid("on_max_cost 'finish' needs a max_cost_micros.", path="$.on_max_cost")
    _check_ceiling(request.max_cost_micros)
    if len(request.depends_on) > MAX_DEPENDENCIES:
        raise Invalid(f"A job can depend on at most {MAX_DEPENDENCIES} others.", path="$.depends_on")
    if request.name is not None and not (1 <= len(request.name) <= 200 and request.name.isprintable()):
        raise Invalid("A job name must have 1 to 200 printable characters.", path="$.name")
    job = Job(
        id=job_id,
        seq=seq,
        config_name=config_name,
        config_version=config_version,
        requires=requires,
        class_id=class_id(requires),
        owner=owner,
        state=_first_state(hold),
        hold=hold,
        rank=rank(now, priority, policy),
        priority=priority,
        max_retries=retries,
        created_at=now,
        retry_on_failure=request.retry_on_failure,
        time_limit_s=request.time_limit_s,
        on_time_limit=request.on_time_limit,
        on_partition=request.on_partition,
        max_cost_micros=request.max_cost_micros,
        on_max_cost=request.on_max_cost,
        depends_on=tuple(dict.fromkeys(request.depends_on)) if request.depends_on else (),
        resume_from=resume_from,
        name=request.name,
        team=requires.team,
        visibility=visibility_of(request.visibility, team, policy.default_visibility),
        start_at=read_start(request.not_before, now),
    )
    return held(job, now) if hold is Hold.NONE else job


def _check_ceiling(max_cost_micros: int | None) -> None:
    if max_cost_micros is not None:
        checked_price(max_cost_micros, "$.max_cost_micros")


def retried(
    old: Job,
    bundle: Bundle,
    by: Submitter,
    facts: Facts,
    policy: Policy,
    *,
    job_id: str,
    seq: int,
    now: float,
    max_cost_micros: int | UnsetType | None = UNSET,
) -> Job:
    """Returns a new job with the same copy of everything: a terminal state is final, so an ended job never runs again.

    What its predecessor waited for, it waits for. An approval that was refused or never given is needed again, unless
    who tries it again could give it. Those it depends on must have completed or still be on their way.
    What it has cost counts on towards the ceiling, which `max_cost_micros` may change.
    """
    if not old.terminal:
        raise WrongJobState(f"The job is {old.state}; only an ended job can be retried.", state=old.state)
    check_secrets(bundle, facts)
    check_trainer(bundle, by)
    if facts.team:
        check_use(facts.team, trainer=bundle.trainer, target=old.requires.target)
    ceiling = old.max_cost_micros if max_cost_micros is UNSET else max_cost_micros
    _check_ceiling(ceiling)
    requires = replace(
        old.requires,
        target=permitted_target(old.requires.target, by),
        room_micros=room_of(ceiling, old.spent_micros),
    )
    priority = old.priority if by.may_raise_priority else min(old.priority, 0)
    unapproved = policy.require_approval or old.reason == REJECTED or facts.never_approved
    depends_on = _still_there(old, facts)
    hold = _hold(_dependencies(depends_on, facts), approval_needed=unapproved and not by.may_approve)
    return Job(
        id=job_id,
        seq=seq,
        config_name=old.config_name,
        config_version=old.config_version,
        requires=requires,
        class_id=class_id(requires),
        owner=old.owner,
        state=_first_state(hold),
        hold=hold,
        rank=rank(now, priority, policy),
        priority=priority,
        max_retries=old.max_retries,
        created_at=now,
        retry_on_failure=old.retry_on_failure,
        time_limit_s=old.time_limit_s,
        on_time_limit=old.on_time_limit,
        on_partition=old.on_partition,
        max_cost_micros=ceiling,
        on_max_cost="stop" if ceiling is None else old.on_max_cost,
        spent_micros=old.spent_micros,
        depends_on=depends_on,
        retry_of=old.id,
        resume_from=going_on.described(facts.resume) if facts.resume else None,
        name=old.name,
        team=old.team,
        visibility=old.visibility,
    )


def _first_state(hold: Hold) -> JobState:
    return JobState.QUEUED if hold is Hold.NONE else JobState.BLOCKED
