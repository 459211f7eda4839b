"""Prints the version of this package and, as JSON, of the Python that it runs on."""

import argparse
import platform

from simpletuner_fleet import __version__
from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.frame.output import Output


def version(args: argparse.Namespace) -> int:
    out = Output(args)
    if out.shows_result:
        out.item({"version": __version__, "python": platform.python_version()}, ())
    else:
        print(f"simpletuner-fleet {__version__}")
    return ExitCode.OK
