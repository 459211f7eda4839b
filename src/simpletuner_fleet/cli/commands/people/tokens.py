"""Declares the `simpletuner tokens` commands and their options."""

from simpletuner_fleet.cli.commands.rows import Noun, Verb, argument, repeated
from simpletuner_fleet.settings import values

CREATE = (
    argument("name", metavar="NAME"),
    repeated(
        "--permission",
        "PERMISSION",
        "For example queue.submit; * is all of them; may be repeated",
        required=True,
    ),
    argument("--expires", read=values.seconds, metavar="TIME", help="For example 90d"),
)

TOKENS = Noun(
    "tokens",
    "API tokens for people and programs",
    "nouns.people.tokens",
    (
        Verb("list", "List API tokens"),
        Verb("create", "Create an API token, shown only once", CREATE),
        Verb("revoke", "Revoke an API token", (argument("id", metavar="ID|NAME"),)),
    ),
)
