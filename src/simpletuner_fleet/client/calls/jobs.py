"""Defines the calls about jobs as steps: what is sent, to which route, and when sending twice is harmless."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from simpletuner_fleet.client.calls.call import Give, Steps
from simpletuner_fleet.client.calls.caller import RouteCaller
from simpletuner_fleet.client.curves import Metrics
from simpletuner_fleet.client.table import calls
from simpletuner_fleet.client.table.job_answers import JobView, SubmitAnswer, WholeJobView
from simpletuner_fleet.client.table.requests import SubmitOptions

JobRef = str | JobView | SubmitAnswer
"""A job by its id, or as the client has told of it."""
PAGE = 200


def id_of(job: JobRef) -> str:
    if isinstance(job, str):
        return job
    known = job.job_id if isinstance(job, SubmitAnswer) else job.id
    if known is None:
        raise ValueError("a dry run submits nothing: there is no job to speak of")
    return known


def new_key() -> str:
    return f"py-{secrets.token_urlsafe(18)}"


def submit(
    caller: RouteCaller,
    config: str | Mapping[str, Any],
    options: SubmitOptions,
    *,
    config_name: str | None,
    dry_run: bool,
    key: str | None,
) -> Steps[SubmitAnswer]:
    """Submits a job; the key makes it one job, however often the request is sent."""
    body: dict[str, Any] = {**options}
    if isinstance(config, str):
        body["config_name"] = config
    else:
        body["config"] = dict(config)
        if config_name is not None:
            body["config_name"] = config_name
    if dry_run:
        return (yield from caller.call(calls.SUBMIT, body={**body, "dry_run": True}, repeatable=True))
    return (yield from caller.call(calls.SUBMIT, body=body, key=key or new_key()))


def cancel(
    caller: RouteCaller, job: JobRef, *, checkpoint_first: bool, grace_s: float | None
) -> Steps[WholeJobView]:
    body: dict[str, Any] = {"checkpoint_first": checkpoint_first}
    if grace_s is not None:
        body["grace_s"] = grace_s
    return (yield from caller.call(calls.CANCEL, path={"id": id_of(job)}, body=body, repeatable=True))


def retry(caller: RouteCaller, job: JobRef, resume_from: str | None, key: str | None) -> Steps[WholeJobView]:
    body = {"resume_from": resume_from} if resume_from else {}
    return (yield from caller.call(calls.RETRY, path={"id": id_of(job)}, body=body, key=key or new_key()))


def set_priority(caller: RouteCaller, job: JobRef, priority: int | str) -> Steps[WholeJobView]:
    body = {"priority": priority}
    return (yield from caller.call(calls.SET_PRIORITY, path={"id": id_of(job)}, body=body, repeatable=True))


def jobs(caller: RouteCaller, limit: int | None, query: Mapping[str, Any]) -> Steps[None]:
    """Gives jobs, newest first, reading page after page."""
    cursor, left = None, limit
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        page = yield from caller.call(calls.LIST_JOBS, query={**query, "limit": size, "cursor": cursor})
        for job in page.jobs[:left]:
            yield Give(job)
        left = None if left is None else left - len(page.jobs)
        cursor = page.next
        if not cursor or not page.jobs:
            return


def metrics(
    caller: RouteCaller,
    job: JobRef,
    keys: Sequence[str],
    points: int,
    attempt: int | None,
    steps: tuple[int | None, int | None],
) -> Steps[Metrics]:
    job_id = id_of(job)
    query = {
        "key": list(keys) or None,
        "points": points,
        "attempt": attempt,
        "from_step": steps[0],
        "to_step": steps[1],
    }
    view = yield from caller.call(calls.METRICS, path={"id": job_id}, query=query)
    return Metrics(job_id=job_id, view=view)
