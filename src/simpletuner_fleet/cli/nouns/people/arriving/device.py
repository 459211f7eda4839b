"""Logs in without a browser here: the user compares a code in a browser on any machine and lets this terminal in."""

import platform
import time
from collections.abc import Callable

from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail
from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.languages import _

TERMINALS = "/api/login/terminals"
LEAST_POLL_S = 0.5


def token_by_device(
    where: ConnectionSettings, out: Output, sleep: Callable[[float], None] = time.sleep
) -> tuple[str, str]:
    """Shows a code, waits until somebody has confirmed it in a browser, and returns the token and their name."""
    with Api(where._replace(token=None), quiet=out.quiet) as api:
        asked = api.post(TERMINALS, {"name": terminal_name()})
        out.say_once(
            _("Open %(page)s and compare the code: %(code)s", page=asked["page"], code=asked["code"])
        )
        deadline = time.monotonic() + float(asked["expires_in_s"])
        while time.monotonic() < deadline:
            sleep(max(LEAST_POLL_S, float(asked["poll_s"])))
            answer = api.post(f"{TERMINALS}/claim", {"secret": asked["secret"]})
            if answer.get("token"):
                return str(answer["token"]), str(answer["name"])
    raise nobody_came()


def terminal_name() -> str:
    """Returns how this machine calls itself to whoever lets it in."""
    return platform.node()[:64]


def nobody_came() -> CliError:
    return fail(
        _("nobody let this terminal in"),
        _("the time for it is over"),
        "simpletuner login",
        "sign_in_lost",
        ExitCode.TIMEOUT,
    )
