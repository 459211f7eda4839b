"""Declares the `simpletuner workers` commands and their options."""

from simpletuner_fleet.cli.commands.rows import Noun, Verb, argument, repeated, switch
from simpletuner_fleet.languages.names import WORKER_STATUSES
from simpletuner_fleet.settings import values

WORKER = argument("worker", metavar="WORKER", help="A worker's id or name")

LIST = (
    argument(
        "--status",
        choices=tuple(WORKER_STATUSES),
        metavar="STATUS",
        help="Only workers of this status",
    ),
    repeated("--label", "KEY=GLOB", "Only with this label"),
    switch("--watch", help="Go on and show changes as they happen"),
)
CREATE = (
    argument("name", metavar="NAME"),
    argument(
        "--type",
        choices=("persistent", "ephemeral"),
        default="persistent",
        help="Whether it stays online between jobs (default: persistent)",
    ),
    repeated("--label", "KEY=VALUE", "May be repeated"),
)
DRAIN = (
    WORKER,
    argument("--note", metavar="TEXT", may_be_empty=True, help="Why, for the others"),
    argument(
        "--timeout",
        read=values.seconds,
        metavar="TIME",
        help="After so long stop what still runs; it goes on elsewhere (default: wait for it to end)",
    ),
    switch("--no-checkpoint", help="At the timeout stop without saving a checkpoint first"),
    switch("--wait", help="Return when nothing runs there any more"),
)

WORKERS = Noun(
    "workers",
    "Administer workers",
    "nouns.workers",
    (
        Verb("list", "List all workers", LIST),
        Verb("get", "Show one worker", (WORKER,)),
        Verb("create", "Create a worker and its token, shown only once", CREATE),
        Verb("drain", "Finish the current job, take no new one", DRAIN),
        Verb("resume", "Undo drain", (WORKER,)),
        Verb("rotate-token", "Make a new token; the old one is invalid at once", (WORKER,)),
        Verb(
            "set-labels",
            "Set labels (KEY=VALUE) or take them away (KEY-)",
            (WORKER, argument("labels", nargs="+", metavar="KEY=VALUE|KEY-")),
        ),
        Verb("delete", "Delete a worker that is offline", (WORKER,)),
    ),
)
