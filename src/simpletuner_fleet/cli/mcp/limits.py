"""Limits what an agent may spend, which is checked here before anything is sent."""

from msgspec import Struct

from simpletuner_fleet.core.policy import PRIORITY_NAMES

HOUR_S = 3600.0


class BeyondLimit(Exception):
    """The agent asked for more than whoever started the server allowed."""


class SpendLimits(Struct, frozen=True, kw_only=True):
    """Holds the most that an agent may spend.

    Nothing may be submitted unless `submit` is set, and then no more than these limits allow.
    """

    submit: bool = False
    max_priority: int = 0
    max_hours: float = 4.0
    """For all tries of a job together."""
    max_gpus: int = 1
    max_jobs: int = 5
    """While the server runs."""
    overrides: frozenset[str] = frozenset()
    """The settings of a config that may be replaced."""


class SubmitWish(Struct, frozen=True, kw_only=True):
    """Holds those parts of an agent's request that cost something."""

    priority: int | str = 0
    hours: float
    gpus: int
    retries: int = 0
    overrides: frozenset[str] = frozenset()


def check(limits: SpendLimits, asked: SubmitWish, submitted: int) -> None:
    """Raises BeyondLimit with a sentence that names the limit, so that the agent can ask for less."""
    if submitted >= limits.max_jobs:
        raise BeyondLimit(f"{submitted} jobs were submitted already, and --max-jobs is {limits.max_jobs}.")
    priority = (
        PRIORITY_NAMES.get(asked.priority.lower()) if isinstance(asked.priority, str) else asked.priority
    )
    if priority is None or priority > limits.max_priority:
        raise BeyondLimit(f"The priority can be at most {limits.max_priority} (--max-priority).")
    if not 0 < asked.hours * (1 + asked.retries) <= limits.max_hours:
        raise BeyondLimit(
            f"hours times the number of tries (1 + retries) can be at most {limits.max_hours:g} (--max-time)."
        )
    if not 0 <= asked.gpus <= limits.max_gpus:
        raise BeyondLimit(f"A job can have at most {limits.max_gpus} GPUs (--max-gpus).")
    beyond = sorted(asked.overrides - limits.overrides)
    if beyond:
        allowed = ", ".join(sorted(limits.overrides)) or "none"
        raise BeyondLimit(
            f"{', '.join(beyond)} may not be replaced; allowed are: {allowed} (--allow-override)."
        )
