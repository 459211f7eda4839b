"""What a command throws when it cannot go on, and the exit codes programs may rely on."""

from enum import IntEnum

from simpletuner_fleet.client import troubles
from simpletuner_fleet.client.errors import ClientError as CliError
from simpletuner_fleet.client.errors import fail, usage

__all__ = ["CliError", "CurlPrinted", "ExitCode", "fail", "usage"]


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


class CurlPrinted(Exception):
    """The call was printed, as `--curl` asks, and is not made."""
