"""Prints the version of this package and, as JSON, of the Python that it runs on."""

import argparse
import platform
import sys

from simpletuner_fleet import __version__
from simpletuner_fleet.cli.frame.errors import ExitCode


def version(args: argparse.Namespace) -> int:
    if getattr(args, "output", "table") in ("json", "jsonl"):
        sys.stdout.write(f'{{"version":"{__version__}","python":"{platform.python_version()}"}}\n')
    else:
        sys.stdout.write(f"simpletuner-fleet {__version__}\n")
    return ExitCode.OK
