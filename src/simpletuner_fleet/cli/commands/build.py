"""Makes argparse's parsers from the table of commands."""

import argparse
from collections.abc import Collection
from typing import Any

from simpletuner_fleet import __version__
from simpletuner_fleet.cli.commands.audit import AUDIT
from simpletuner_fleet.cli.commands.backup import BACKUP
from simpletuner_fleet.cli.commands.configs import CONFIGS
from simpletuner_fleet.cli.commands.data import DATA
from simpletuner_fleet.cli.commands.jobs import JOBS
from simpletuner_fleet.cli.commands.machines.pools import MACHINES, POOLS
from simpletuner_fleet.cli.commands.others import OTHERS
from simpletuner_fleet.cli.commands.people.approvals import APPROVALS
from simpletuner_fleet.cli.commands.people.money import PRICES
from simpletuner_fleet.cli.commands.people.notifications import NOTIFICATIONS, WEBHOOKS
from simpletuner_fleet.cli.commands.people.quotas import LIMITS, QUOTAS
from simpletuner_fleet.cli.commands.people.secrets import SECRETS
from simpletuner_fleet.cli.commands.people.sign_in import SIGN_IN
from simpletuner_fleet.cli.commands.people.teams import TEAMS
from simpletuner_fleet.cli.commands.people.tokens import TOKENS
from simpletuner_fleet.cli.commands.people.users import ROLES, USERS
from simpletuner_fleet.cli.commands.programs import (
    PROGRAMS,
    SERVICE_DESCRIPTION,
    SERVICE_HELP,
    SERVICE_VERBS,
    Program,
    ServiceVerb,
)
from simpletuner_fleet.cli.commands.rows import FORMATS, Argument, Arguments, Command, Noun, OneOf, Verb
from simpletuner_fleet.cli.commands.shared_options import (
    add_config_file,
    add_help,
    add_setting,
    connection_options,
    talk_options,
)
from simpletuner_fleet.cli.commands.workers import WORKERS
from simpletuner_fleet.cli.frame.command_name import command_name
from simpletuner_fleet.cli.frame.parser import Parser, WideHelp

PACKAGE = "simpletuner_fleet.cli"
NOUNS = (
    JOBS,
    WORKERS,
    POOLS,
    MACHINES,
    CONFIGS,
    SECRETS,
    DATA,
    NOTIFICATIONS,
    WEBHOOKS,
    AUDIT,
    TOKENS,
    USERS,
    ROLES,
    SIGN_IN,
    TEAMS,
    QUOTAS,
    PRICES,
    LIMITS,
    APPROVALS,
    BACKUP,
)


def build_parser(words: Collection[str] | None = None) -> Parser:
    """Returns the parser; given the `words` of a command line, only the commands in it get their arguments."""
    name = command_name()
    root = Parser(
        prog=name,
        description="Train on every GPU machine you have: one orchestrator, many workers.",
        epilog=f"'{name} worker' runs an agent on this machine, '{name} workers' administers all of them. "
        f"'{name} COMMAND --help' tells more.",
    )
    add_help(root)
    root.add_argument(
        "--version",
        action="version",
        version=f"simpletuner-fleet {__version__}",
        help="Show the version and exit",
    )
    root.set_defaults(run="", parser=root)
    commands = _children(root, "command", "COMMAND", name)
    talk = talk_options()
    for program in PROGRAMS:
        if _is_named(program.name, words):
            _add_program(commands, program)
        else:
            commands.add_parser(program.name, help=program.help)
    for noun in NOUNS:
        if _is_named(noun.name, words):
            _add_noun(commands, noun, talk, words)
        else:
            commands.add_parser(noun.name, help=noun.help)
    if _is_named("service", words):
        _add_service(commands)
    else:
        commands.add_parser("service", help=SERVICE_HELP)
    for command in OTHERS:
        if _is_named(command.name, words):
            _add_command(commands, command, _options_of(command, talk))
        else:
            commands.add_parser(command.name, help=command.help)
    return root


def _options_of(command: Command, talk: Parser) -> Parser:
    if not command.prints:
        return connection_options()
    is_usual = command.formats == FORMATS and command.calls
    return talk if is_usual else talk_options(command.formats, calls=command.calls)


def _is_named(name: str, words: Collection[str] | None) -> bool:
    return words is None or name in words


def command_words() -> frozenset[str]:
    """Returns every first word that is a command of ours."""
    return frozenset({row.name for row in (*PROGRAMS, *NOUNS, *OTHERS)} | {"service"})


def _children(parser: Parser, dest: str, metavar: str, prog: str, title: str = "COMMANDS") -> Any:
    return parser.add_subparsers(dest=dest, metavar=metavar, title=title, parser_class=Parser, prog=prog)


def _add_program(commands: Any, program: Program) -> None:
    parser: Parser = commands.add_parser(
        program.name,
        help=program.help,
        description=program.help,
        usage=f"{command_name()} {program.name} [OPTIONS]",
        formatter_class=WideHelp,
    )
    parser.set_defaults(run=f"{PACKAGE}.{program.run}", parser=parser)
    for setting in program.settings:
        add_setting(parser, setting)
    _add_arguments(parser, program.arguments)
    add_config_file(parser)
    add_help(parser)


def _add_noun(commands: Any, noun: Noun, talk: Parser, words: Collection[str] | None) -> None:
    verbs = _add_group(commands, noun.name, noun.help, noun.help, f"{command_name()} {noun.name}")
    for verb in noun.verbs:
        if _is_named(verb.name, words):
            command = _command_of(noun, verb)
            _add_command(verbs, command, _options_of(command, talk))
        else:
            verbs.add_parser(verb.name, help=verb.help)


def _command_of(noun: Noun, verb: Verb) -> Command:
    usual = f"{noun.module}:{verb.name.replace('-', '_')}"
    return Command(
        verb.name,
        verb.run or usual,
        verb.help,
        verb.arguments,
        calls=verb.calls,
        formats=verb.formats,
    )


def _add_command(commands: Any, command: Command, talk: Parser) -> None:
    parser: Parser = commands.add_parser(
        command.name, help=command.help, description=command.help, parents=[talk]
    )
    parser.set_defaults(run=f"{PACKAGE}.{command.run}", parser=parser)
    _add_arguments(parser, command.arguments)


def _add_group(commands: Any, name: str, help: str, description: str, prog: str) -> Any:
    """Adds a command that takes a subcommand, and on its own only shows its help."""
    parser: Parser = commands.add_parser(name, help=help, description=description)
    add_help(parser)
    parser.set_defaults(run="", parser=parser)
    return _children(parser, "verb", "VERB", prog)


def _add_service(commands: Any) -> None:
    verbs = _add_group(commands, "service", SERVICE_HELP, SERVICE_DESCRIPTION, f"{command_name()} service")
    for verb in SERVICE_VERBS:
        parser: Parser = verbs.add_parser(verb.name, help=verb.help, description=verb.help)
        add_help(parser)
        parser.set_defaults(run="", parser=parser)
        roles = _children(parser, "role", "ROLE", f"{command_name()} service {verb.name}", title="ROLES")
        for program in PROGRAMS:
            _add_service_role(roles, verb, program)


def _add_service_role(roles: Any, verb: ServiceVerb, program: Program) -> None:
    parser: Parser = roles.add_parser(program.name, help=f"The {program.name}", description=verb.help)
    parser.set_defaults(run=f"{PACKAGE}.{verb.run}", parser=parser, role=program.name)
    _add_arguments(parser, verb.arguments)
    if verb.takes_settings:
        for setting in program.settings:
            add_setting(parser, setting)
        add_config_file(parser)
    add_help(parser)


def _add_arguments(parser: Any, arguments: Arguments) -> None:
    for row in arguments:
        if isinstance(row, OneOf):
            _add_arguments(parser.add_mutually_exclusive_group(), row.arguments)
        else:
            _add_argument(parser, row)


def _add_argument(parser: argparse.ArgumentParser, row: Argument) -> None:
    parser.add_argument(*row.names, **row.options)
