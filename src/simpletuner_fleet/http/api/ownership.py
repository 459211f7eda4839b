"""Whose thing it is: a worker speaks for itself alone, and most users act on their own jobs alone."""

from typing import Any

from simpletuner_fleet.core.errors import FleetError, Forbidden
from simpletuner_fleet.core.people.ownership import Writer, stands_above
from simpletuner_fleet.core.people.permissions import may_steer_job
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import Call


class OtherWorker(Forbidden):
    """This token belongs to another worker."""

    code = "other_worker"
    next_step = "Use the worker_id returned by the registration."

    def __init__(self) -> None:
        FleetError.__init__(self)


def refuse_other_worker(call: Call[Any], named: str | None) -> None:
    """`named` is the worker the message says it comes from; older agents name one everywhere."""
    if named and named != call.principal.id:
        raise OtherWorker


class NotYourJob(Forbidden):
    """This job belongs to someone else."""

    code = "not_your_job"
    next_step = "Ask its owner or an administrator."

    def __init__(self) -> None:
        FleetError.__init__(self)


def writer_of(call: Call[Any]) -> Writer:
    caller = call.principal
    return Writer(actor=call.actor, owns_as=caller.owns_as, above=stands_above(caller.permissions))


async def refuse_job_of_another(call: Call[Any]) -> None:
    """A job keeps its owner, so it is enough to look before the act."""
    if not call.principal.only_own:
        return
    job = await deps_of(call).fleet.read_now(lambda view: view.job(call.path["id"]))
    if job is not None and not may_steer_job(
        only_own=call.principal.only_own, caller=call.principal.id, owner=job.owner
    ):
        raise NotYourJob
