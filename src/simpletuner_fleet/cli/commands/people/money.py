"""Declares `simpletuner usage` and the `simpletuner prices` commands."""

from simpletuner_fleet.cli.commands.rows import Command, Noun, Verb, argument, switch
from simpletuner_fleet.settings import values

USAGE = Command(
    "usage",
    "nouns.people.usage:usage",
    "Who has used how much, and at what cost",
    (
        argument(
            "--by",
            choices=("person", "team", "config", "gpu", "day"),
            default="person",
            help="One line for each person, team, config, kind of GPU or day (default: person)",
        ),
        argument(
            "--since", metavar="TIME", help="From this time on, or 30d (default: the first of this month)"
        ),
        argument("--until", metavar="TIME", help="Up to this time (default: now)"),
        switch("--csv", help="Print it as CSV"),
    ),
)
ADD = (
    argument("price", read=values.money, metavar="AMOUNT", help="Of one GPU for an hour, for example 2.50"),
    argument("--gpu", metavar="GLOB", help="Of GPUs with such a name, for example '*H100*'"),
    argument("--label", metavar="KEY=GLOB", help="Of workers with such a label"),
    argument("--type", choices=("persistent", "ephemeral"), help="Of workers of this type"),
)
PRICES = Noun(
    "prices",
    "What an hour of a GPU costs",
    "nouns.people.prices",
    (
        Verb("list", "List the rules about prices, in the order in which they are asked"),
        Verb("add", "Set a price: it holds where everything that is named is so", ADD),
        Verb("delete", "Delete a rule about prices", (argument("id", metavar="ID"),)),
        Verb(
            "worker",
            "Set what the GPUs of one worker cost",
            (
                argument("worker", metavar="WORKER", help="A worker's id or name"),
                argument(
                    "price", metavar="AMOUNT", help="For one GPU and hour; none: by its own word, or by rule"
                ),
            ),
        ),
        Verb(
            "currency",
            "Choose the currency, before anything is counted in it",
            (argument("currency", metavar="EUR"),),
        ),
        Verb("idle", "Show what GPUs cost now that nobody uses"),
    ),
)
