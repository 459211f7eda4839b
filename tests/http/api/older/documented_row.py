"""One request that the former documents describe, and what is answered to it today."""

from typing import Any

from msgspec import Struct


class Documented(Struct, frozen=True, kw_only=True):
    about: str
    """The capability, as the guides have it."""
    asked: str
    """Method and path, with the query."""
    body: dict[str, Any] | None = None
    form: dict[str, str] | None = None
    """Sent as curl sends `-F`."""
    status: int = 200
    names: tuple[str, ...] = ()
    """Names that the answer has."""
    says: str = ""
    """What the problem says, where that is the answer: what to ask instead."""
    leaves: bool = False
    """The scene is another one afterwards: to be asked last."""


def asked(about: str, request: str, body: dict[str, Any] | None = None, **more: Any) -> Documented:
    return Documented(about=about, asked=request, body=body, **more)


OTHERWISE = 410
ONE_CONFIG = {"--model_family": "flux", "--model_type": "lora", "--max_train_steps": "200"}
STATS = (
    *("queue_depth", "running", "max_concurrent", "user_max_concurrent", "team_max_concurrent"),
    *("enable_fair_share", "avg_wait_seconds", "by_status", "by_user", "local", "workers"),
)
OWN = (*("pending_count", "running_count", "blocked_count", "best_position", "pending_jobs", "running_jobs"),)
LIMITS = ("success", "max_concurrent", "user_max_concurrent", "team_max_concurrent", "enable_fair_share")
RULE = {"name": "costly", "required_approver_level": "lead", "exempt_levels": ["admin"]}
