"""Defines what a command raises when it cannot go on, and the exit codes that programs may rely on."""

import signal
from enum import IntEnum

from simpletuner_fleet.client import troubles
from simpletuner_fleet.client.errors import ClientError as CliError
from simpletuner_fleet.client.errors import fail, usage
from simpletuner_fleet.languages import _

__all__ = [
    "CliError",
    "CurlPrinted",
    "ExitCode",
    "fail",
    "not_together",
    "only_with",
    "output_refused",
    "usage",
]


class ExitCode(IntEnum):
    OK = 0
    FAILED = troubles.FAILED
    USAGE = troubles.USAGE
    NOT_FOUND = troubles.NOT_FOUND
    AUTH = troubles.AUTH
    CONFLICT = troubles.CONFLICT
    UNREACHABLE = troubles.UNREACHABLE
    TIMEOUT = troubles.TIMEOUT
    JOB_FAILED = troubles.JOB_FAILED
    CANNOT_PLACE = troubles.CANNOT_PLACE
    TLS = troubles.TLS
    NO_ACCELERATOR = troubles.NO_ACCELERATOR
    INTERRUPTED = troubles.INTERRUPTED
    READER_LEFT = 128 + signal.SIGPIPE
    """As shells report any other program whose reader goes away before it has written everything."""


def output_refused(error: OSError) -> CliError:
    """Returns the error for output that cannot be written where the caller has sent it."""
    return fail(
        _("the output cannot be written"),
        error.strerror or str(error),
        _("check where it goes, and whether that disk has free space:  df -h"),
        "E_OUTPUT",
    )


def not_together(flag: str, other: str, next_step: str) -> CliError:
    """Returns the error for an option that would be ignored beside another, or beside what the command is given."""
    return usage(
        _("%(flag)s cannot be used this way", flag=flag),
        _("it cannot be used together with %(names)s", names=other),
        next_step,
    )


def only_with(flag: str, other: str, next_step: str) -> CliError:
    """Returns the error for an option that means nothing without another."""
    return usage(
        _("%(flag)s cannot be used this way", flag=flag), _("%(names)s must be given", names=other), next_step
    )


class CurlPrinted(Exception):
    """The call was printed, as `--curl` asks, and is not made."""
