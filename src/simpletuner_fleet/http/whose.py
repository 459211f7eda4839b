"""A worker speaks for itself alone."""

from typing import Any

from simpletuner_fleet.core.errors import FleetError, Forbidden
from simpletuner_fleet.http.routes import Call


class OtherWorker(Forbidden):
    """This token belongs to another worker."""

    code = "other_worker"
    next_step = "Use the worker_id that the registration answered with."

    def __init__(self) -> None:
        FleetError.__init__(self)


def refuse_other_worker(call: Call[Any], named: str | None) -> None:
    """`named` is the worker the message says it comes from; older agents name one everywhere."""
    if named and named != call.principal.id:
        raise OtherWorker
