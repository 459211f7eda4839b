"""Declares the `simpletuner quotas` and `simpletuner limits` commands."""

from simpletuner_fleet.cli.commands.rows import WITHOUT_IDS, Noun, OneOf, Verb, argument, repeated
from simpletuner_fleet.settings import values

KINDS = (
    *("running_jobs", "gpus", "gpu_hours_day", "gpu_hours_month", "money_day", "money_month"),
    *("jobs_per_hour", "stored_bytes"),
)
ACTIONS = ("warn", "wait", "refuse", "approve")
"""By their words, for the core's own types would make every command load more."""
QUOTA = argument("id", metavar="ID")
CEILING = argument("ceiling", metavar="N", help="Of money an amount, for example 500.00")
ACTION = argument(
    "--action", choices=ACTIONS, help="What happens at the ceiling (default: wait, which stored_bytes cannot)"
)
WARN_AT = argument(
    "--warn-at", read=values.number, metavar="SHARE", help="Say so from this share on (default: 0.8)"
)
CREATE = (
    argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS)),
    CEILING,
    OneOf(
        (
            argument("--user", metavar="USER", help="Of this person"),
            argument("--team", metavar="TEAM", help="Of this team"),
            argument("--role", metavar="ROLE", help="Of each person with this role"),
            argument("--each", action="store_true", help="Of each person"),
        )
    ),
    ACTION,
    WARN_AT,
)

QUOTAS = Noun(
    "quotas",
    "Quotas: how much people and teams may use, and what they have used",
    "nouns.people.quotas",
    (
        Verb("mine", "Show what you have used and what is left"),
        Verb("list", "List all quotas"),
        Verb("budgets", "Show budgets: what was spent, what is left, and where it is going"),
        Verb("create", "Set a quota: of one, of each, or of all together", CREATE),
        Verb("set", "Change a quota's ceiling, or what happens there", (QUOTA, CEILING, ACTION, WARN_AT)),
        Verb("delete", "Take a quota away", (QUOTA,)),
    ),
)
SET_LIMITS = (
    repeated(
        "--limit", "NAME=N", "global, user or team: so many jobs at once; none for no limit; may be repeated"
    ),
    argument("--fair-share", choices=("on", "off"), help="Whether those who have used least go first"),
    argument(
        "--half-life", read=values.seconds, metavar="TIME", help="How fast use is forgotten, for example 7d"
    ),
)
LIMITS = Noun(
    "limits",
    "How many jobs may run at once, and whether shares count",
    "nouns.people.limits",
    (
        Verb("get", "Show them", formats=WITHOUT_IDS),
        Verb("set", "Change them", SET_LIMITS, formats=WITHOUT_IDS),
    ),
)
