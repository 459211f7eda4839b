"""Says of a list what is missing in it because the server cannot read it."""

from typing import Any

from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.languages import _


def say_unreadable(out: Output, answer: dict[str, Any], delete: str) -> None:
    """Names what the server cannot read, and the command that deletes it."""
    for id_ in answer.get("unreadable", ()):
        out.say(
            _(
                "%(id)s cannot be read: what it may forbid is forbidden until it is restored from a backup or deleted "
                "(%(command)s)",
                id=id_,
                command=f"simpletuner {delete} {id_}",
            )
        )
