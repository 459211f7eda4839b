"""A server that drips its answer, against all that asks one: each call ends in its time, and says why."""

import asyncio
import ssl
import threading
import time
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import httpx2
import pytest

from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.client import AsyncFleet, Fleet, connection, time_limits
from simpletuner_fleet.client.calls import async_driver, caller, logs
from simpletuner_fleet.client.errors import ClientError
from simpletuner_fleet.client.files import downloads
from simpletuner_fleet.client.files.downloads import Downloader, RemoteFile
from simpletuner_fleet.client.time_limits import LimitedClient, Pace, pieces, sent, within
from simpletuner_fleet.client.trust import Choices, TrustError, context_for
from tests.client.dripping import DRIPS, dripping
from tests.client.test_trust import make
from tests.quiet_server import QuietServer

TOO_SLOW = "E_ANSWER_TOO_SLOW"
SOON_S = 5.0
"""Far beyond the limits that are set here, and far below what a drip takes."""
every_drip = pytest.mark.parametrize("drip", DRIPS)


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could wait for the limits that are meant for people."""
    for module in (time_limits, async_driver):
        monkeypatch.setattr(module, "COMING_S", 0.3)
    monkeypatch.setattr(caller, "TIMEOUT_S", 0.4)
    monkeypatch.setattr(downloads, "READ_TIMEOUT_S", 0.4)
    monkeypatch.setattr(logs, "SILENT_S", 0.4)
    monkeypatch.setattr(time_limits.Pace.__init__, "__defaults__", (0.3,))


class Soon:
    def __enter__(self) -> None:
        self._began_at = time.monotonic()

    def __exit__(self, *_: object) -> None:
        assert time.monotonic() - self._began_at < SOON_S


@every_drip
def test_a_call_of_the_command_line_ends(drip: str) -> None:
    with dripping(drip) as url, Api(connection.given(url=url, api_token="st_x")) as api, Soon():
        with pytest.raises(ClientError) as raised:
            api.call("GET", "/api/jobs", timeout_s=0.4)
        assert raised.value.code == TOO_SLOW


@every_drip
def test_a_submission_is_not_sent_again_to_who_drips(drip: str) -> None:
    with dripping(drip) as url, Api(connection.given(url=url, api_token="st_x"), quiet=True) as api, Soon():
        api.until = time.monotonic() + 1.0
        with pytest.raises(ClientError) as raised:
            api.post_once("/api/queue/submit", {}, "key")
        assert raised.value.code == TOO_SLOW


@every_drip
def test_a_call_of_the_python_client_ends(drip: str) -> None:
    with dripping(drip) as url, Fleet(url, "st_x") as fleet, Soon():
        with pytest.raises(ClientError) as raised:
            fleet.whoami()
        assert raised.value.code == TOO_SLOW


@every_drip
async def test_a_call_of_the_asyncio_client_ends(drip: str) -> None:
    with dripping(drip) as url, Soon():
        async with AsyncFleet(url, "st_x") as fleet:
            with pytest.raises(ClientError) as raised:
                await fleet.whoami()
            assert raised.value.code == TOO_SLOW


@every_drip
def test_waiting_ends_when_its_time_is_up(drip: str) -> None:
    with dripping(drip) as url, Fleet(url, "st_x") as fleet, Soon(), pytest.raises(ClientError):
        fleet.wait("j_1", timeout_s=1.0)


@every_drip
async def test_waiting_with_asyncio_ends_when_its_time_is_up(drip: str) -> None:
    with dripping(drip) as url, Soon():
        async with AsyncFleet(url, "st_x") as fleet:
            with pytest.raises(ClientError):
                await fleet.wait("j_1", timeout_s=1.0)


@every_drip
def test_a_log_keeps_a_pace(drip: str) -> None:
    of_a_log = "text/plain\r\nX-Log-Attempt: 1"
    with dripping(drip, content_type=of_a_log) as url, Fleet(url, "st_x") as fleet, Soon():
        with pytest.raises(ClientError) as raised:
            list(fleet.logs("j_1"))
        assert raised.value.code in (TOO_SLOW, "E_FOREIGN_ANSWER")


@every_drip
def test_a_download_keeps_a_pace_and_its_part_stays(drip: str, tmp_path: Path) -> None:
    file = RemoteFile(url="/api/file", place="a/b", size=1_000_000_000, sha256="0" * 64)
    octets = "application/octet-stream"
    with dripping(drip, content_type=octets) as url, Fleet(url, "st_x") as fleet, Soon():
        with pytest.raises(ClientError) as raised:
            Downloader(fleet._files).to_folder(tmp_path, [file])
        assert raised.value.code == TOO_SLOW


@every_drip
def test_the_answer_to_an_upload_ends(drip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simpletuner_fleet.client.files.sync_api.SEALING_TIMEOUT_S", 0.4)
    with dripping(drip) as url, Fleet(url, "st_x") as fleet, Soon():
        with pytest.raises(httpx2.ReadTimeout) as raised:
            fleet._files.put_bytes("/api/data/objects/x", {}, iter([b"a"]), 1)
        assert time_limits.is_in_vain(raised.value)


def test_a_server_that_is_silent_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.client.dripping.EVERY_S", 60.0)
    with dripping("headers") as url, Api(connection.given(url=url, api_token="st_x")) as api, Soon():
        with pytest.raises(ClientError) as raised:
            api.call("GET", "/api/jobs", timeout_s=0.4)
        assert raised.value.code == "E_CONN_TIMEOUT"


@pytest.mark.parametrize("drip", ["headers", "small chunks", "body"])
@pytest.mark.parametrize("every_s", [0.02, 60.0], ids=["drips", "is silent"])
@pytest.mark.parametrize("act", ["logs", "whoami"])
async def test_both_clients_say_the_same_of_one_cause(
    monkeypatch: pytest.MonkeyPatch, drip: str, every_s: float, act: str
) -> None:
    monkeypatch.setattr("tests.client.dripping.EVERY_S", every_s)
    monkeypatch.setattr(caller, "RESEND_AFTER_S", (0.0,))
    of_a_log = "text/plain\r\nX-Log-Attempt: 1"
    with dripping(drip, content_type="application/json" if act == "whoami" else of_a_log) as url, Soon():

        def blocking() -> str:
            with Fleet(url, "st_x") as fleet, pytest.raises(ClientError) as raised:
                fleet.whoami() if act == "whoami" else list(fleet.logs("j_1"))
            return raised.value.code

        async with AsyncFleet(url, "st_x") as fleet:
            with pytest.raises(ClientError) as raised:
                await fleet.whoami() if act == "whoami" else [one async for one in fleet.logs("j_1")]
        assert raised.value.code == await asyncio.to_thread(blocking)
        assert raised.value.code == ("E_CONN_TIMEOUT" if every_s > 1.0 else TOO_SLOW)


def test_a_drip_over_tls_ends(tmp_path: Path) -> None:
    certificate, key = make("127.0.0.1").files(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with dripping("headers", context) as url, Soon():
        where = connection.given(url=url, api_token="st_x", ca_cert=certificate)
        with Api(where) as api, pytest.raises(ClientError) as raised:
            api.call("GET", "/api/jobs", timeout_s=0.4)
        assert raised.value.code == TOO_SLOW


@every_drip
def test_a_server_that_drips_its_authority_is_not_trusted(drip: str, tmp_path: Path) -> None:
    certificate, key = make("127.0.0.1").files(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with dripping(drip, context) as url, Soon(), pytest.raises(TrustError):
        context_for(url, Choices(fingerprint="sha256:" + "0" * 64), print, 0.5)


def test_what_comes_slowly_but_fast_enough_is_not_ended() -> None:
    pace = Pace(10.0)
    for _second in range(100):
        pace.moved(1000, 1.0)
    pace.moved(0, 9.9)
    with pytest.raises(httpx2.ReadTimeout):
        pace.moved(10, 0.2)


def test_the_time_that_a_reader_takes_is_not_counted() -> None:
    read = pieces(iter([b"a", b"b"]), None, Pace(0.05))
    assert next(read) == b"a"
    time.sleep(0.1)
    assert list(read) == [b"b"]


def test_what_is_taken_too_slowly_is_not_sent_on() -> None:
    taken = sent(iter([b"a", b"b"]), Pace(0.05))
    next(taken)
    time.sleep(0.1)
    with pytest.raises(httpx2.ReadTimeout):
        next(taken)


def test_a_limit_ends_with_its_call(tmp_path: Path) -> None:
    """The connection that is kept for the next call knows nothing of the limit of the one before."""
    with QuietServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        with LimitedClient(base_url=f"http://127.0.0.1:{server.server_port}", timeout=5.0) as client:
            assert client.get("/", extensions=time_limits.extensions(0.2)).status_code == 200
            time.sleep(0.3)
            with within(5.0):
                assert client.get("/").status_code == 200
        server.shutdown()
