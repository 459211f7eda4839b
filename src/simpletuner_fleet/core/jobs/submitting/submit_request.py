"""Defines the request to submit a job, and checks what the submitter may ask for in it.

Nobody gets anything by submitting a job that they could not get for it later: a raised priority, or a place on the
orchestrator's own machine.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import Count, FreeText, Name, Reading, Seconds, Version, Whole
from simpletuner_fleet.core.configs.bundle import (
    Bundle,
    check_name,
    check_references,
    read_bundle,
    with_overrides,
)
from simpletuner_fleet.core.configs.datasets import check_mounts
from simpletuner_fleet.core.configs.stored_bundle import MOST_REMEMBERED, is_small, read_stored, text_of
from simpletuner_fleet.core.errors import Forbidden, Invalid
from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs.job import OnMaxCost, OnPartition, OnTimeLimit, Target
from simpletuner_fleet.core.people.visibility import FULL_VISIBILITY, Visibility, VisibilityScope
from simpletuner_fleet.core.policy import MAX_PRIORITY, PRIORITY_NAMES
from simpletuner_fleet.core.publishing import Publish, check_publish
from simpletuner_fleet.core.training.watchdog import Watchdog, check_watchdog, merged

INLINE_NAME = "inline"
SUBMIT_LOCAL = "queue.submit.local"
SUBMIT_COMMAND = "queue.submit.command"
COMMAND = "command"
APPROVE = "queue.approve"
SET_PRIORITY = "queue.priority"
NO_WATCHDOG = Watchdog()


class Submitter(Struct, frozen=True, kw_only=True):
    """Identifies who submits a job or tries one again, and what their permissions allow."""

    actor: Actor
    may_run_locally: bool = False
    may_approve: bool = False
    """Their own jobs need nobody else's approval."""
    may_raise_priority: bool = False
    may_lead: bool = True
    """Sets priorities in a team that they lead as its lead; False for a token that was made for less."""
    owns_as: str = ""
    """The id under which secrets may be theirs: a token's user."""
    may_read_jobs: bool = False
    """And with them their checkpoints."""
    may_run_commands: bool = True
    """Whether their jobs may be whatever code they write."""
    scope: VisibilityScope = FULL_VISIBILITY
    """What they may see: nothing else can be named in a job."""

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(one for one in (self.actor.id, self.owns_as) if one)


class SubmitRequest(Struct, frozen=True, kw_only=True):
    """Describes the job that a person or program asks for."""

    config_name: FreeText | None = None
    config_version: Version | None = None
    """Of the config that is named; the newest where it is left out."""
    config: dict[str, Any] | None = None
    target: Target = Target.AUTO
    worker_labels: dict[FreeText, FreeText] = {}
    gpus: Whole | None = None
    """Of all nodes together."""
    nodes: Whole | None = None
    min_vram_gb: Reading | None = None
    accelerator: FreeText | None = None
    max_price_micros: Count | None = None
    """It runs on no machine of which an hour is known to cost more, in millionths of the currency's unit."""
    priority: Whole | FreeText = 0
    max_retries: Whole | None = None
    retry_on_failure: bool = False
    time_limit_s: Seconds | None = None
    on_time_limit: OnTimeLimit = "fail"
    on_partition: OnPartition = "pause"
    max_cost_micros: Count | None = None
    """All its attempts together cost no more, in millionths of the currency's unit."""
    on_max_cost: OnMaxCost = "stop"
    depends_on: list[FreeText] = []
    not_before: FreeText | None = None
    """It does not start before this time, as in 2026-11-18T22:00:00+01:00; it keeps its place in line."""
    overrides: dict[str, Any] = {}
    datasets: dict[FreeText, FreeText] = {}
    """These are added to the config's, or take the place of those of the same name."""
    watchdog: Watchdog = NO_WATCHDOG
    """It takes the place of what the config says of the same."""
    resume_from: Name | None = None
    """JOB or JOB:STEP: go on from what that job has stored."""
    publish: Publish | None = None
    """It takes the place of what the config says of the same."""
    name: FreeText | None = None
    team: Name | None = None
    """Name or id of the team that it is for; the one joined first where it is left out, none where it is empty."""
    visibility: Visibility | None = None
    no_wait: bool = False
    any_gpu: bool = False
    """Takes whichever GPU is free: labels, memory and accelerator that are asked for are not looked at."""
    for_approval: bool = False
    """Asks for an approval where a quota would refuse the job."""
    dry_run: bool = False
    idempotency_key: FreeText | UnsetType | None = UNSET


class RetryRequest(Struct, frozen=True, kw_only=True):
    """Asks to try an ended job again, and says what is to differ this time."""

    resume_from: str | None = None
    """JOB or JOB:STEP: go on from what that job has stored; from the start where it is left out."""
    max_cost_micros: int | UnsetType | None = UNSET
    """Another ceiling; None: none any more."""

    @property
    def words(self) -> list[str | int | None]:
        """Returns the values that are equal in two requests for the same thing."""
        ceiling = self.max_cost_micros
        return [self.resume_from] if ceiling is UNSET else [self.resume_from, ceiling]


AS_IT_WAS = RetryRequest()


def read_priority(requested: int | str) -> int:
    if isinstance(requested, str):
        named = PRIORITY_NAMES.get(requested.lower())
        if named is None:
            raise Invalid(
                f"priority must be a number or one of {', '.join(PRIORITY_NAMES)}.", path="$.priority"
            )
        return named
    if not -MAX_PRIORITY <= requested <= MAX_PRIORITY:
        raise Invalid(f"priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}.", path="$.priority")
    return requested


def refuse_priority_beyond(ceiling: int, priority: int, *, may_raise: bool) -> None:
    """Refuses a priority above what the rules of the job's team let somebody set, unless they may raise any job.

    Everybody may leave a job at the usual priority or set it lower.
    """
    if priority > max(0, ceiling) and not may_raise:
        raise Forbidden(SET_PRIORITY)


def permitted(
    request: SubmitRequest, by: Submitter, *, local_enabled: bool, priority_ceiling: int = 0
) -> SubmitRequest:
    """Returns the request as permitted, or raises what the submitter may not ask for.

    `auto` leaves the orchestrator's machine out where they may not use it.
    """
    refuse_priority_beyond(priority_ceiling, read_priority(request.priority), may_raise=by.may_raise_priority)
    if request.any_gpu:
        request = replace(request, worker_labels={}, min_vram_gb=0.0, accelerator="")
    target = permitted_target(request.target, by)
    if target is Target.LOCAL and not local_enabled:
        raise Invalid(
            "This orchestrator runs no jobs itself.",
            path="$.target",
            next_step="Use target 'worker' or 'auto', or start the server with --local.",
        )
    return request if target is request.target else replace(request, target=target)


def permitted_target(target: Target, by: Submitter) -> Target:
    if by.may_run_locally or target is Target.WORKER:
        return target
    if target is Target.LOCAL:
        raise Forbidden(SUBMIT_LOCAL)
    return Target.WORKER


def check_trainer(bundle: Bundle, by: Submitter) -> None:
    if bundle.trainer == COMMAND and not by.may_run_commands:
        raise Forbidden(SUBMIT_COMMAND)


class ChosenConfig(Struct, frozen=True, kw_only=True):
    """Holds the config of one job: its name and version, and the job's own copy of it."""

    name: str
    version: int
    """It is 0 where the config came with the request and is stored nowhere else."""
    bundle: Bundle
    text: bytes
    """The bundle as it is stored with the job."""
    saved_by: str = ""
    """The id of whoever saved this version; empty where the config came with the request."""
    author_may_run_locally: bool = True
    """Whether they could have had it run on the orchestrator's own machine themselves."""


def inline_config(request: SubmitRequest, config: Mapping[str, Any]) -> ChosenConfig:
    """Returns the config that came with the request."""
    read = read_bundle(dict(config))
    name = check_name(request.config_name or INLINE_NAME, "$.config_name")
    bundle, text = _as_requested(read, request)
    return ChosenConfig(name=name, version=0, bundle=bundle, text=text)


def stored_config(
    request: SubmitRequest,
    name: str,
    version: int,
    stored: bytes,
    *,
    saved_by: str,
    author_may_run_locally: bool,
) -> ChosenConfig:
    """Returns the config that the request names, as it is stored now."""
    if _changes_config(request) or not is_small(stored):
        bundle, text = _as_requested(read_stored(stored), request)
    else:
        bundle, text = _unchanged(stored)
    return ChosenConfig(
        name=name,
        version=version,
        bundle=bundle,
        text=text,
        saved_by=saved_by,
        author_may_run_locally=author_may_run_locally,
    )


def away_from_home(target: Target, config: ChosenConfig) -> Target:
    """Makes `auto` leave the orchestrator's machine out if the config's author may not use it.

    It does not matter who submits the job. Who names that machine chooses it for this very config, and is told whose it
    is.
    """
    return Target.WORKER if target is Target.AUTO and not config.author_may_run_locally else target


def _changes_config(request: SubmitRequest) -> bool:
    return bool(request.overrides or request.datasets or request.publish) or request.watchdog != NO_WATCHDOG


@lru_cache(maxsize=MOST_REMEMBERED)
def _unchanged(stored: bytes) -> tuple[Bundle, bytes]:
    """Returns a stored config without changes, from a cache, since one config is often submitted many times.

    A config that is refused is read every time.
    """
    return _as_requested(read_stored(stored), SubmitRequest())


def _as_requested(bundle: Bundle, request: SubmitRequest) -> tuple[Bundle, bytes]:
    """Returns the job's copy of the config with the request's replacements, and the text that is stored."""
    changed = with_watchdog(with_overrides(bundle, request.overrides), request.watchdog)
    publish = check_publish(request.publish, "$.publish") if request.publish else bundle.publish
    datasets = check_mounts({**bundle.datasets, **request.datasets}, "$.datasets")
    requested = replace(changed, datasets=datasets, publish=publish)
    check_references(requested)
    return requested, text_of(requested)


def with_watchdog(bundle: Bundle, watchdog: Watchdog) -> Bundle:
    """Returns the bundle with the watchdog settings of the request in place of its own."""
    return replace(bundle, watchdog=check_watchdog(merged(bundle.watchdog, watchdog), "$.watchdog"))
