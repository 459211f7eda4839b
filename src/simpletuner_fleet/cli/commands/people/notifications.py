"""Declares the `simpletuner notifications` and `simpletuner webhooks` commands."""

from simpletuner_fleet.cli.commands.rows import Noun, Verb, argument, repeated, switch
from simpletuner_fleet.settings import values

ID = argument("id", metavar="ID", help="Id or name of the endpoint")
RULES = (
    repeated("--event", "EVENT", "What to be told of; may be repeated ('notifications events' lists them)"),
    switch("--all", help="Everybody's jobs, not only one's own (needs admin.notifications)"),
    argument(
        "--quiet-hours",
        may_be_empty=True,
        metavar="HH:MM-HH:MM",
        help="Hours in which nothing is sent; 'none' for none",
    ),
    argument("--digest", choices=("none", "hourly", "daily"), help="Many messages in one"),
    argument(
        "--digest-at",
        may_be_empty=True,
        metavar="HH:MM",
        help="When the daily digest is sent (default: 09:00)",
    ),
    argument(
        "--zone",
        may_be_empty=True,
        metavar="ZONE",
        help="Time zone of these hours, for example Europe/Berlin (default: UTC)",
    ),
    argument(
        "--language",
        may_be_empty=True,
        metavar="LANG",
        help="Language of the messages (default: that of the account)",
    ),
)
CHANNEL = argument(
    "--channel",
    required=True,
    metavar="CHANNEL",
    choices=("email", "slack", "discord", "teams", "ntfy", "apprise", "webhook", "syslog"),
    help="How to be told: email, slack, discord, teams, ntfy, apprise, webhook or syslog",
)
ADDRESS = argument(
    "--address",
    metavar="ADDRESS",
    help="URL, e-mail address or Apprise URL; without it, it is read from standard input",
)
NAME = argument("--name", metavar="NAME", help="How it is called (default: its channel)")
SINCE = argument("--since", metavar="TIME", help="From this moment on, for example 2026-01-31T12:00:00Z")
SEQ = argument("--seq", metavar="N", read=values.count, help="From this entry of the audit log on")
OVERLAP = argument(
    "--overlap",
    metavar="SECONDS",
    read=values.seconds_or_none,
    default=86_400.0,
    help="How long the old secret still signs as well",
)
COMMON = (
    Verb("show", "Show one endpoint and how it fares", (ID,)),
    Verb("delete", "Delete an endpoint", (ID,)),
    Verb("test", "Send a test message", (ID,)),
    Verb("pause", "Send nothing there until it is resumed", (ID,)),
    Verb("resume", "Go on where it stood; nothing is lost", (ID,)),
    Verb("replay", "Send again from a point in time or an audit entry on", (ID, SINCE, SEQ)),
    Verb("history", "List the last tries to deliver", (ID,)),
)
NOTIFICATIONS = Noun(
    "notifications",
    "Being told of events: by e-mail, chat, webhook or syslog",
    "nouns.people.notifications",
    (
        Verb("list", "List endpoints"),
        Verb("events", "List what one can be told of"),
        Verb("add", "Add an endpoint", (CHANNEL, ADDRESS, NAME, *RULES)),
        Verb("change", "Change an endpoint; what is left out stays", (ID, ADDRESS, NAME, *RULES)),
        *COMMON,
    ),
)
WEBHOOKS = Noun(
    "webhooks",
    "Signed webhooks for programs, and the audit log for a SIEM",
    "nouns.people.notifications",
    (
        Verb("list", "List webhooks", run="nouns.people.notifications:list_webhooks"),
        Verb("events", "List what a webhook can be told of"),
        Verb(
            "add",
            "Add a webhook; its signing secret is printed once",
            (ADDRESS, NAME, *RULES[:2]),
            run="nouns.people.notifications:add_webhook",
        ),
        *COMMON,
        Verb("rotate", "Make a new signing secret; the old one stays valid for a while", (ID, OVERLAP)),
    ),
)
