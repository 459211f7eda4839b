"""What a command throws when it cannot go on, and the exit codes programs may rely on."""

from collections.abc import Iterable
from enum import IntEnum

from simpletuner_fleet.client import troubles
from simpletuner_fleet.client.troubles import Trouble


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


class CliError(Exception):
    """Ends a command with a message of four parts."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.what)
        self.trouble = trouble


class CurlPrinted(Exception):
    """The call was printed, as `--curl` asks, and is not made."""


def fail(
    what: str, why: str, next_steps: str | Iterable[str], code: str, status: int = ExitCode.FAILED
) -> CliError:
    steps = (next_steps,) if isinstance(next_steps, str) else tuple(next_steps)
    return CliError(Trouble(what, why, steps, code, int(status)))


def usage(what: str, why: str, next_step: str) -> CliError:
    return fail(what, why, next_step, "E_USAGE", ExitCode.USAGE)
