"""Declares the `simpletuner secrets` commands and their options."""

from simpletuner_fleet.cli.commands.rows import Noun, Verb, argument

NAME = argument("name", metavar="NAME")

SECRETS = Noun(
    "secrets",
    "Secrets for trainers, named by configs and never shown",
    "nouns.people.secrets",
    (
        Verb("list", "List secrets by name and age"),
        Verb(
            "set",
            "Store a secret; its value is read from standard input",
            (
                NAME,
                argument("--from-file", metavar="FILE", help="Read the value from this file instead"),
                argument(
                    "--for",
                    dest="users",
                    action="append",
                    metavar="USER",
                    help="Whose jobs may have it; may be repeated (default: everybody's; 'everybody' says so again)",
                ),
            ),
            run="nouns.people.secrets:set_",
        ),
        Verb("delete", "Delete a secret; attempts that run keep what they were given", (NAME,)),
    ),
)
