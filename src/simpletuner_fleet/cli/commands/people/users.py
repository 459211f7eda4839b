"""`simpletuner users …`"""

from simpletuner_fleet.cli.commands.rows import Noun, Verb, argument
from simpletuner_fleet.languages.names import ROLES as ROLE_NAMES

USER = argument("user", metavar="NAME|ID")
ROLES = tuple(ROLE_NAMES)

CREATE = (
    argument("name", metavar="NAME"),
    argument("--role", choices=ROLES, default="member", help="What they may do (default: member)"),
)

USERS = Noun(
    "users",
    "People who log in to the console",
    "nouns.people.users",
    (
        Verb("list", "List users"),
        Verb("create", "Create a user; prints a link to choose a password", CREATE),
        Verb("disable", "Disable a user and end their sessions", (USER,)),
        Verb("enable", "Let a disabled user log in again", (USER,)),
        Verb("set-role", "Change what a user may do", (USER, argument("role", choices=ROLES))),
        Verb("reset-password", "Print a link with which a user chooses a new password", (USER,)),
        Verb("link", "Print the link that makes the first admin, while there is no user"),
    ),
)
