"""Defines what a command raises when it cannot go on, and the exit codes that programs may rely on."""

from enum import IntEnum

from simpletuner_fleet.client import troubles
from simpletuner_fleet.client.errors import ClientError as CliError
from simpletuner_fleet.client.errors import fail, usage
from simpletuner_fleet.languages import _

__all__ = ["CliError", "CurlPrinted", "ExitCode", "fail", "output_refused", "usage"]


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


def output_refused(error: OSError) -> CliError:
    """Returns the error for output that cannot be written where the caller has sent it."""
    return fail(
        _("the output cannot be written"),
        error.strerror or str(error),
        _("check where it goes, and whether that disk has free space:  df -h"),
        "E_OUTPUT",
    )


class CurlPrinted(Exception):
    """The call was printed, as `--curl` asks, and is not made."""
