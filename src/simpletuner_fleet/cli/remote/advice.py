"""Tells what to do about a job that is not dispatched, or that failed, by the stable code of the reason."""

from simpletuner_fleet.client.troubles import TROUBLES
from simpletuner_fleet.core.placement.reasons import REASONS
from simpletuner_fleet.languages import _

TROUBLE_OF_END = {"WORKER_LOST": "E_HEARTBEAT_TIMEOUT", "TRAINER_FAILED": "E_PROCESS_CRASH"}
"""The errors with which jobs end that a client's trouble has advice for."""


def of_reason(code: str) -> tuple[str, ...]:
    return tuple(_(step) for step in steps_of(code))


def steps_of(code: str) -> tuple[str, ...]:
    """Returns the steps in English; none for a code without advice."""
    reason = REASONS.get(code)
    advice = reason.advice if reason else ()
    trouble = reason.trouble if reason else TROUBLE_OF_END.get(code, "")
    return (*advice, *TROUBLES[trouble].next) if trouble else advice
