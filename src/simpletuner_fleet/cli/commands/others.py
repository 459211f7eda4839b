"""Declares the commands without a subcommand, which talk to an orchestrator or look at this machine."""

import argparse

from simpletuner_fleet.cli.commands.people.money import USAGE
from simpletuner_fleet.cli.commands.rows import WITHOUT_IDS, Command, OneOf, argument, repeated, switch
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
    argument(
        "--token-file",
        metavar="FILE",
        help="Log in with the token in this file; '-': ask for it (default where standard input is no terminal: read that)",
    ),
    switch("--web", help="Log in with a browser also where standard input is no terminal"),
    switch(
        "--device", help="Show a code to compare in a browser on any machine (default where none opens here)"
    ),
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

MCP = (
    switch("--allow-submit", help="Let the agent submit saved configs, and cancel what it has submitted"),
    argument(
        "--max-priority",
        read=values.whole,
        default=0,
        metavar="P",
        help="Highest priority of its jobs (default: 0)",
    ),
    argument(
        "--max-time",
        read=values.seconds,
        default=14_400.0,
        metavar="TIME",
        help="Longest time of a job, all its tries together (default: 4h)",
    ),
    argument(
        "--max-gpus",
        read=values.count,
        default=1,
        metavar="N",
        help="Most GPUs of a job (default: 1)",
    ),
    argument(
        "--max-jobs",
        read=values.positive_count,
        default=5,
        metavar="N",
        help="Most jobs while this server runs (default: 5)",
    ),
    repeated("--allow-override", "KEY", "A setting of the config that it may replace; may be repeated"),
)

OTHERS = (
    Command(
        "offers",
        "nouns.machines.pools:offers",
        "List what providers offer now, cheapest first",
        (
            OneOf(
                (
                    argument("name", metavar="POOL", nargs="?", help="Only of this pool"),
                    argument("--pool", metavar="POOL", help="Only of this pool"),
                )
            ),
        ),
    ),
    Command("status", "nouns.status:status", "Server, workers, queue on one screen", formats=WITHOUT_IDS),
    USAGE,
    Command(
        "doctor",
        "doctor.doctor:doctor",
        "Find out what is wrong; changes nothing",
        (DOCTOR,),
        calls=False,
        formats=WITHOUT_IDS,
    ),
    Command(
        "login",
        "nouns.people.login:login",
        "Log in to a server, with a browser or a token, and remember it",
        LOGIN,
    ),
    Command("logout", "nouns.people.login:logout", "Forget a server's token", (LOGOUT,), calls=False),
    Command("whoami", "nouns.people.login:whoami", "Show whom the token belongs to"),
    Command(
        "demo",
        "programs.demo:demo",
        "Server, worker and a model that really trains, in one go",
        DEMO,
        calls=False,
    ),
    Command(
        "mcp",
        "mcp.server:serve",
        "Serve the fleet to an agent (Model Context Protocol on standard input and output); read-only",
        MCP,
        prints=False,
    ),
    Command("version", "nouns.version:version", "Show the version", calls=False, formats=WITHOUT_IDS),
    Command(
        "completion",
        "nouns.completion:completion",
        "Print a completion script",
        (argument("shell", choices=("bash", "zsh", "fish")),),
        prints=False,
    ),
)
