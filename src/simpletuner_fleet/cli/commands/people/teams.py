"""Declares the `simpletuner teams` commands and their options."""

from simpletuner_fleet.cli.commands.rows import Noun, Verb, argument, repeated
from simpletuner_fleet.languages.names import TEAM_ROLES, VISIBILITIES
from simpletuner_fleet.settings import values

TEAM = argument("team", metavar="TEAM", help="A team's name or id")
USER = argument("user", metavar="USER", help="A user's name or id")
SHAPE = (
    argument(
        "--weight", read=values.number, metavar="N", help="Its share of the fleet, as against other teams"
    ),
    argument(
        "--visibility",
        choices=(*VISIBILITIES, "default"),
        help="Who sees what its members make (default: as set)",
    ),
    repeated("--worker", "KEY=GLOB", "Its jobs may use workers with such a label alone; may be repeated"),
    repeated("--gpu", "GLOB", "Its jobs may use GPUs of such names alone; may be repeated"),
    repeated("--trainer", "NAME", "Its jobs may use this trainer; may be repeated"),
    repeated("--target", "TARGET", "Its jobs may use this target; may be repeated"),
    argument("--max-priority", read=values.whole, metavar="P", help="How high a member may set a priority"),
)

TEAMS = Noun(
    "teams",
    "Teams: who belongs to them, what they may use, who sees what",
    "nouns.people.teams",
    (
        Verb("list", "List the teams you may know of"),
        Verb("get", "Show one team with its members and rules", (TEAM,)),
        Verb("create", "Create a team", (argument("name", metavar="NAME"), *SHAPE)),
        Verb("set", "Change a team; rules that are given take the place of all rules", (TEAM, *SHAPE)),
        Verb("delete", "Delete a team; what was its stays with its owners", (TEAM,)),
        Verb(
            "add",
            "Give a user a role in a team",
            (
                TEAM,
                USER,
                argument(
                    "--role",
                    choices=tuple(TEAM_ROLES),
                    default="member",
                    help="In the team (default: member)",
                ),
            ),
        ),
        Verb("remove", "Take a user out of a team", (TEAM, USER)),
    ),
)
