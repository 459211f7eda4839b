"""`login --web`: a person lets this terminal in with a browser, on this machine or any other."""

import platform
import time
import webbrowser
from collections.abc import Callable

from simpletuner_fleet.cli.frame.errors import ExitCode, fail
from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.cli.frame.screen import can_open
from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.languages import _

LEAST_POLL_S = 0.5


def token_by_browser(
    where: ConnectionSettings, out: Output, sleep: Callable[[float], None] = time.sleep
) -> tuple[str, str]:
    """Shows a code, waits until somebody has compared it in the browser and said yes; returns the token and their name."""
    with Api(where._replace(token=None), quiet=out.quiet) as api:
        asked = api.post("/api/login/terminals", {"name": platform.node()[:64]})
        page = str(asked["page"])
        out.say(_("Open %(page)s and compare the code: %(code)s", page=page, code=asked["code"]))
        if can_open() and page.startswith(("http://", "https://")):
            webbrowser.open(page)
        deadline = time.monotonic() + float(asked["expires_in_s"])
        while time.monotonic() < deadline:
            sleep(max(LEAST_POLL_S, float(asked["poll_s"])))
            answer = api.post("/api/login/terminals/claim", {"secret": asked["secret"]})
            if answer.get("token"):
                return str(answer["token"]), str(answer["name"])
    raise fail(
        _("nobody let this terminal in"),
        _("the code has expired"),
        "simpletuner login --web",
        "sign_in_lost",
        ExitCode.TIMEOUT,
    )
