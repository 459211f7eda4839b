"""Logs in by a browser on this machine: the user signs in and agrees, and the browser returns to this terminal."""

import secrets
import webbrowser
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail
from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.cli.nouns.people.arriving.device import (
    TERMINALS,
    nobody_came,
    terminal_name,
    token_by_device,
)
from simpletuner_fleet.cli.nouns.people.arriving.listener import LoopbackListener
from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.core.people.sign_in import loopback
from simpletuner_fleet.languages import _


def token_by_browser(where: ConnectionSettings, out: Output) -> tuple[str, str]:
    """Returns the token and its owner's name; falls back to comparing a code if no browser opens."""
    verifier, state = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    with LoopbackListener(state) as listener, Api(where._replace(token=None), quiet=out.quiet) as api:
        mine = {"port": listener.port, "challenge": loopback.challenge_of(verifier), "state": state}
        asked = api.post(TERMINALS, {"name": terminal_name(), "loopback": mine})
        page = str(asked["page"])
        if page.startswith(("http://", "https://")) and webbrowser.open(page):
            out.say(_("Go on in the browser. If none has opened: %(page)s", page=page))
            out.say(_("With a browser on another machine: simpletuner login %(url)s --device", url=where.url))
            return _answered(listener, api, asked, verifier)
    return token_by_device(where, out)


def _answered(listener: LoopbackListener, api: Api, asked: dict[str, Any], verifier: str) -> tuple[str, str]:
    try:
        answer = listener.wait(float(asked["expires_in_s"]))
    except NoAnswer:
        raise nobody_came() from None
    done = "no"
    try:
        if answer.code:
            done = "failed"
            given = api.post(f"{TERMINALS}/exchange", {"code": answer.code, "verifier": verifier})
            token, name, done = str(given["token"]), str(given["name"]), "yes"
            return token, name
    finally:
        listener.send_on(_page(str(asked["page"]), done))
    raise _refused()


def _page(asked: str, done: str) -> str:
    """Returns the address of the page on which the user agreed or refused, which then shows the result."""
    parts = urlsplit(asked)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, f"done={done}", ""))


def _refused() -> CliError:
    return fail(
        _("this terminal was not let in"),
        _("the person in the browser refused it"),
        "simpletuner login",
        "sign_in_refused",
        ExitCode.AUTH,
    )
