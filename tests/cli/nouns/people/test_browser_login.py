"""`simpletuner login` beside a browser: the page opens, the browser comes back, and nobody else's answer counts."""

import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2
import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.nouns.people.arriving.listener import LoopbackListener
from simpletuner_fleet.core.people.sign_in import loopback
from tests.cli.conftest import FakeServer, Run, Seen, problem

STATE = "s" * 43
BACK = f"{loopback.PATH}?code=ok_1&state={STATE}"


class Consent:
    """The server's side, and a browser that comes back as soon as it is opened."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.asked: dict[str, str] = {}
        self.exchanged: list[dict[str, str]] = []
        self.says = "code=ok_1"
        self.came: list[httpx2.Response] = []
        self.browser = threading.Thread()
        server.on(
            "GET", "/api/whoami", lambda seen: {"id": "t_1", "name": "login on here", "permissions": []}
        )
        server.on("POST", "/api/login/terminals", self._ask)
        server.on("POST", "/api/login/terminals/exchange", self._exchange)

    def _ask(self, seen: Seen) -> object:
        self.asked = seen.body["loopback"]
        page = f"{self.server.url}/login/terminal?code=ok_page"
        return {"code": "ok_page", "secret": "", "page": page, "expires_in_s": 30.0, "poll_s": 2.0}

    def _exchange(self, seen: Seen) -> object:
        self.exchanged.append(seen.body)
        if not loopback.proves(seen.body["verifier"], self.asked["challenge"]):
            return problem(404, "not_found", "It was refused.")
        return {"token": "st_good", "name": "Ana Lima"}

    def opened(self, page: str) -> bool:
        assert page == f"{self.server.url}/login/terminal?code=ok_page"
        self.browser = threading.Thread(target=self._come_back, daemon=True)
        self.browser.start()
        return True

    def _come_back(self) -> None:
        address = f"http://127.0.0.1:{self.asked['port']}{loopback.PATH}?{self.says}&state="
        for state in ("x" * 43, self.asked["state"], self.asked["state"]):
            try:
                self.came.append(httpx2.get(address + state, timeout=20))
            except httpx2.HTTPError:
                return


@pytest.fixture
def consent(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Consent:
    consent = Consent(server)
    monkeypatch.setattr("simpletuner_fleet.cli.frame.screen.can_open", lambda: True)
    monkeypatch.setattr("webbrowser.get", lambda: None)
    monkeypatch.setattr("webbrowser.open", consent.opened)
    for name in ("SSH_CONNECTION", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    return consent


def test_the_browser_brings_a_code_that_only_this_terminal_can_exchange(run: Run, consent: Consent) -> None:
    result = run("login", consent.server.url, "--web")
    assert result.code == 0, result.err
    assert f"Logged in to {consent.server.url} as Ana Lima" in result.err
    assert [one["code"] for one in consent.exchanged] == ["ok_1"]
    consent.browser.join(5)
    forged, own, *again = consent.came
    assert forged.status_code == 404, "another state was answered first, and nothing came of it"
    assert (own.status_code, own.headers["location"]) == (
        303,
        f"{consent.server.url}/login/terminal?done=yes",
    )
    assert not again, "nobody listens any more"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((loopback.HOST, int(consent.asked["port"])), 1)


def test_a_no_and_a_failed_exchange_are_told_in_both_places(run: Run, consent: Consent) -> None:
    consent.says = "error=access_denied"
    refused = run("login", consent.server.url, "--web")
    assert (refused.code, "refused it" in refused.err) == (ExitCode.AUTH, True), refused.err
    consent.says = "code=ok_1"
    consent.server.on(
        "POST", "/api/login/terminals/exchange", lambda seen: problem(404, "not_found", "It took too long.")
    )
    failed = run("login", consent.server.url, "--web")
    assert (failed.code, "It took too long." in failed.err) == (ExitCode.NOT_FOUND, True)
    consent.browser.join(5)
    ends = [urlsplit(one.headers["location"]).query for one in consent.came if one.status_code == 303]
    assert ends == ["done=no", "done=failed"]
    assert not consent.exchanged


def test_a_browser_that_does_not_open_leaves_the_code_to_compare(
    run: Run, consent: Consent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda page: False)
    monkeypatch.setattr("simpletuner_fleet.cli.nouns.people.arriving.device.LEAST_POLL_S", 0.01)
    page = f"{consent.server.url}/login/terminal?code=BCDF-GHJK"
    waiting = {"code": "BCDF-GHJK", "secret": "ok_x", "page": page, "expires_in_s": 9.0, "poll_s": 0.01}
    consent.server.on("POST", "/api/login/terminals", lambda seen: waiting)
    consent.server.on("POST", "/api/login/terminals/claim", lambda seen: {"token": "st_good", "name": "Ana"})
    result = run("login", consent.server.url, "--web")
    assert (result.code, "BCDF-GHJK" in result.err) == (0, True), result.err


@pytest.fixture
def listener() -> Iterator[LoopbackListener]:
    with LoopbackListener(STATE) as listener:
        yield listener


@pytest.mark.parametrize(
    ("method", "target", "host"),
    [
        ("GET", BACK.replace(STATE, "t" * 43), None),
        ("GET", BACK.replace(loopback.PATH, f"{loopback.PATH}/"), None),
        ("GET", BACK.replace(loopback.PATH, "/"), None),
        ("GET", f"{BACK}&code=ok_2", None),
        ("GET", BACK.replace("ok_1", ""), None),
        ("GET", BACK, "rebound.example:1"),
        ("POST", BACK, None),
    ],
)
def test_what_is_not_the_answer_is_refused(
    listener: LoopbackListener, method: str, target: str, host: str | None
) -> None:
    headers = {"Host": host} if host else {}
    answer = httpx2.request(method, f"http://127.0.0.1:{listener.port}{target}", headers=headers)
    assert answer.status_code in {404, 501}
    assert "location" not in answer.headers
    with pytest.raises(TimeoutError):
        listener.wait(0)


def test_it_listens_on_this_machine_alone(listener: LoopbackListener) -> None:
    assert listener._server.socket.getsockname()[0] == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", listener.port), 1)
