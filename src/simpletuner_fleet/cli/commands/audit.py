"""Declares the `simpletuner audit` commands and their options."""

from simpletuner_fleet.cli.commands.rows import WITHOUT_IDS, Noun, Verb, argument
from simpletuner_fleet.settings import values

LIST = (
    argument("--event-type", metavar="VALUE", help="For example worker.token_rotated"),
    argument(
        "--security",
        action="store_true",
        help="Only what tells who can get in, who may do more, and who was refused",
    ),
    argument("--actor-id", metavar="VALUE", help="Who did it"),
    argument("--target-type", metavar="VALUE", help="worker, job, config, token or user"),
    argument("--target-id", metavar="VALUE", help="To what"),
    argument(
        "--since",
        metavar="VALUE",
        help="From this time on: 2026-11-15T10:00:00Z, or 2h for the last two hours",
    ),
    argument("--until", metavar="VALUE", help="Up to this time"),
    argument("--limit", read=values.positive_count, default=50, metavar="N"),
    argument("--offset", read=values.count, default=0, metavar="N"),
)

AUDIT = Noun(
    "audit",
    "Who did what, and whether the record is whole",
    "nouns.audit",
    (
        Verb("list", "List audit entries, newest first", LIST),
        Verb("stats", "Count the entries of each type"),
        Verb("types", "Name every type of entry that there is"),
        Verb("verify", "Check that no entry was changed or removed", formats=WITHOUT_IDS),
    ),
)
