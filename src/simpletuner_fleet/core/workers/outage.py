"""Decides when a worker may conclude that its orchestrator is dead, rather than cut off from it.

A dead orchestrator gives no job away, and on its return it waits a whole timeout for everybody: trainers may run on for
as long as it is dead. One that lives behind a network cut gives jobs away. So a refused connection is checked twice: a
forwarder (`ssh -L`, a sidecar), a load balancer or a translated address refuses for itself, and says nothing about who
is behind it.
"""

from collections.abc import Collection
from enum import StrEnum

BELIEVED_S = 24 * 3600.0
"""From the last answer on: what was taken for a death for so long is taken for a cut from then on."""


class Knock(StrEnum):
    """Gives the result of trying to open a connection."""

    OPEN = "open"
    """Somebody listens."""
    REFUSED = "refused"
    """The machine is there, and nobody listens."""
    SILENT = "silent"


def is_dead(own_socket: Knock | None, others: Collection[Knock], without_answer_s: float) -> bool:
    """Tells whether the orchestrator is dead with enough certainty.

    `own_socket` is the orchestrator's own listening socket, once this worker was connected to it with nobody in between;
    None where it never was. Whoever still listens at another address of it may be the orchestrator.
    """
    return own_socket is Knock.REFUSED and Knock.OPEN not in others and without_answer_s < BELIEVED_S
