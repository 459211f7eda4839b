"""Declares the `simpletuner users` and `simpletuner roles` commands."""

from simpletuner_fleet.cli.commands.rows import Noun, Verb, argument, repeated, switch

USER = argument("user", metavar="NAME|ID")

CREATE = (
    argument("name", metavar="NAME"),
    argument(
        "--role",
        default="member",
        metavar="ROLE",
        help="What they may do: admin, member, viewer or a role of your own (default: member)",
    ),
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
        Verb("set-role", "Change what a user may do", (USER, argument("role", metavar="ROLE"))),
        Verb("reset-password", "Print a link with which a user chooses a new password", (USER,)),
        Verb("link", "Print the link that makes the first admin, while there is no user"),
    ),
)

ROLE = argument("role", metavar="NAME")
SET_ROLE = (
    ROLE,
    repeated("--permission", "NAME", "One that it holds, in place of those it held; may be repeated"),
    switch("--all-jobs", help="Steers everybody's jobs as far as its permissions go, not their own alone"),
)
ROLES = Noun(
    "roles",
    "What people may do: roles of your own beside admin, member and viewer",
    "nouns.people.roles",
    (
        Verb("list", "List roles with their permissions"),
        Verb("set", "Make a role, or change what it may do; never more than you may yourself", SET_ROLE),
        Verb("delete", "Delete a role that nobody has", (ROLE,)),
    ),
)
