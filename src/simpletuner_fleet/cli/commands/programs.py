"""Declares `simpletuner server`, `worker`, and `service …` for both; they take settings as options."""

from typing import NamedTuple

from simpletuner_fleet.cli.commands.rows import Arguments, argument, switch
from simpletuner_fleet.settings import SERVER, WORKER, Setting


class Program(NamedTuple):
    name: str
    run: str
    help: str
    settings: tuple[Setting, ...]
    arguments: Arguments = ()


class ServiceVerb(NamedTuple):
    """Describes a subcommand of `service`, which exists for each of the two programs."""

    name: str
    run: str
    help: str
    arguments: Arguments = ()
    takes_settings: bool = False
    """Whether it takes the options of the program that it is about."""


PROGRAMS = (
    Program("server", "programs.entry:server", "Run the orchestrator", SERVER),
    Program(
        "worker",
        "programs.entry:worker",
        "Run an agent on this GPU machine",
        WORKER,
        (switch("--check", help="Test everything, then exit"),),
    ),
)

ROOT = argument("--root", metavar="DIR", help="For an image: write beneath this folder and start nothing")
RUN_AS = argument(
    "--run-as",
    metavar="USER",
    help="Whom it runs as (default: a worker has a user of its own; a server: who called sudo, or you)",
)

SERVICE_HELP = "Let systemd run a server or a worker"
SERVICE_DESCRIPTION = (
    "Let systemd start a server or a worker with the machine, and bring it back after a crash."
)
SERVICE_VERBS = (
    ServiceVerb(
        "install", "programs.service:install", "Write the unit, enable it and start it", (ROOT, RUN_AS), True
    ),
    ServiceVerb("uninstall", "programs.service:uninstall", "Stop it and remove the unit", (ROOT,)),
    ServiceVerb("status", "programs.service:status", "What systemd says of it"),
    ServiceVerb("print", "programs.service:show", "Print the unit and change nothing", (RUN_AS,), True),
)
