"""The commands of one word that talk to an orchestrator, or to this machine."""

import argparse

from simpletuner_fleet.cli.commands.rows import Command, argument, switch
from simpletuner_fleet.settings import values

DOCTOR = argument(
    "what",
    nargs="?",
    choices=("server", "worker"),
    metavar="server|worker",
    help="Which role of this machine to look at (default: both)",
)
LOGIN = (
    argument("server", nargs="?", metavar="URL", help="The server (default: --url)"),
    argument("--token-file", metavar="FILE", help="Read the token from this file (default: standard input)"),
    switch("--web", help="Log in with a browser instead: it shows the code that this terminal shows"),
)
LOGOUT = argument("server", nargs="?", metavar="URL", help="The server (default: the current one)")
DEMO = (
    switch("--chaos", help="Kill the worker half-way and see the job go on"),
    argument(
        "--steps",
        read=values.positive_count,
        default=2000,
        metavar="N",
        help="Training steps (default: 2000)",
    ),
    argument(
        "--open",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Open the console in a browser, where there is a screen (default: yes)",
    ),
    switch("--keep", help="Keep the folder with everything the demo made"),
)

OTHERS = (
    Command("status", "nouns.status:status", "Server, workers, queue on one screen"),
    Command("doctor", "doctor.doctor:doctor", "Find out what is wrong; changes nothing", (DOCTOR,)),
    Command("login", "nouns.login:login", "Remember a server and a token for it", LOGIN),
    Command("logout", "nouns.login:logout", "Forget a server's token", (LOGOUT,)),
    Command("whoami", "nouns.login:whoami", "Show whom the token belongs to"),
    Command("demo", "programs.demo:demo", "Server, worker and a model that really trains, in one go", DEMO),
    Command("version", "nouns.version:version", "Show the version"),
    Command(
        "completion",
        "nouns.completion:completion",
        "Print a completion script",
        (argument("shell", choices=("bash", "zsh", "fish")),),
    ),
)
