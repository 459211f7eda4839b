"""Completion scripts: static text, so that pressing TAB starts no Python."""

import argparse
import sys

from simpletuner_fleet.cli.commands import build_parser
from simpletuner_fleet.cli.frame.errors import ExitCode


def completion(args: argparse.Namespace) -> int:
    import shtab  # used by this command alone

    sys.stdout.write(shtab.complete(build_parser(), shell=args.shell) + "\n")
    return ExitCode.OK
