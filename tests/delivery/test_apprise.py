"""Services told through Apprise: what it writes goes out by our own outbound connector alone, to whom that allows."""

import asyncio
import json
import logging
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

import pytest

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.notices.checking import check_address, shown_address
from simpletuner_fleet.core.notices.endpoint import Channel
from simpletuner_fleet.core.notices.services import SERVICES
from simpletuner_fleet.delivery.apprise import sending as apprise_sending
from simpletuner_fleet.delivery.apprise.carrier import RequestCarrier
from simpletuner_fleet.delivery.apprise.sending import AppriseSender
from simpletuner_fleet.delivery.outbound import OutboundConnector, Streams
from simpletuner_fleet.delivery.outcome import DeliveryFailed
from simpletuner_fleet.delivery.wording import Wording
from tests.delivery.conftest import LOOPBACK
from tests.delivery.receivers import Certificates, Hook, hook, listening

TOKEN = "AbCdEfGh.123456"
SECRET = "k" * 32
WORDING = Wording(
    title="Job cats failed", lines=("out of memory",), link="https://fleet.example.org/jobs/1", bad=True
)
ADDRESSES = {
    "tgram": (f"tgram://123456789:{SECRET}/12315544/?silent=yes", "api.telegram.org"),
    "pover": (f"pover://{'u' * 30}@{'a' * 30}?priority=high", "api.pushover.net"),
    "pbul": (f"pbul://{SECRET}", "api.pushbullet.com"),
    "pagerduty": (f"pagerduty://{SECRET}@{'a' * 32}?region=eu", "events.eu.pagerduty.com"),
    "mmosts": (f"mmosts://chat.example.org/{'a' * 26}?channel=town", "chat.example.org"),
    "rockets": (
        f"rockets://{'a' * 20}/{'b' * 24}@chat.example.org/%23general?mode=webhook",
        "chat.example.org",
    ),
    "gotifys": (f"gotifys://push.example.org/{TOKEN}", "push.example.org"),
    "zulip": (f"zulip://bot@org/{SECRET}/general", "org.zulipchat.com"),
    "gchat": (f"gchat://space/key/{SECRET}", "chat.googleapis.com"),
    "twilio": (f"twilio://AC{'a' * 32}:{'b' * 32}@15551233456/15555555555", "api.twilio.com"),
    "line": (f"line://{'a' * 50}/U{SECRET}", "api.line.me"),
    "feishu": (f"feishu://{SECRET}", "open.feishu.cn"),
    "wecombot": (f"wecombot://{'a' * 36}", "qyapi.weixin.qq.com"),
}
REFUSED = [
    *(
        "json://example.org/hook",
        "file:///etc/passwd",
        "syslog://",
        "windows://",
        "dbus://",
        "mailto://a:b@c.org",
    ),
    *(f"gotify://push.example.org/{TOKEN}", "matrixs://u:p@example.org", "https://example.org/hook", "tgram"),
    f"tgram://123456789:{SECRET}/1?template=/etc/passwd",
    f"tgram://123456789:{SECRET}/1?silent=yes&Template=/etc/passwd",
    f"tgram://123456789:{SECRET}/1?silent=yes?template=/etc/passwd",
    f"tgram://123456789:{SECRET}/1?silent=yes;template=/etc/passwd",
    f"tgram://123456789:{SECRET}/1?silent=yes&%74emplate=/etc/passwd",
    *(
        f"gotifys://push.example.org/{TOKEN}?{one}"
        for one in ("verify=no", "redirect=yes", "retry=9", "+X-A=b", "-a=b")
    ),
    *(f"gotifys://push.example.org/{TOKEN}?{one}" for one in ("rto=900", "store=yes", "")),
]


class ToLocalhost(OutboundConnector):
    """Calls a receiver of this test, whatever service is named."""

    def __init__(self, port: int, certs: Certificates) -> None:
        super().__init__(LOOPBACK, certs.ca)
        self._port = port

    async def connect(self, host: str, port: int, *, tls: bool) -> Streams:
        return await super().connect("localhost", self._port, tls=tls)


@pytest.fixture
def apprise() -> Iterator[AppriseSender]:
    made = AppriseSender()
    yield made
    made.close()


def address_of(receiver: Hook) -> str:
    return receiver.url.replace("https://", "gotifys://").replace("/hook", f"/{TOKEN}")


async def refusal(
    apprise: AppriseSender, outbound: OutboundConnector, address: str, timeout_s: float = 5.0
) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as failed:
        await apprise.send(outbound, address, WORDING, timeout_s)
    return failed.value


@pytest.mark.parametrize("address", REFUSED)
def test_what_runs_writes_or_fetches_something_else_is_no_address(address: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_address(Channel.APPRISE, address)
    assert SECRET not in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_of_an_address_only_its_service_and_its_end_are_shown() -> None:
    for address, _ in ADDRESSES.values():
        shown = shown_address(Channel.APPRISE, check_address(Channel.APPRISE, address))
        assert len(shown.partition("://")[2]) <= 5, shown
    assert shown_address(Channel.APPRISE, "feishu://short-token") == "feishu://…"


async def test_every_listed_service_is_called_by_our_own_reach_and_refused_in_a_private_network(
    apprise: AppriseSender, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that leads into the server's own network gains nothing: nobody is connected to."""
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["10.0.0.1"]

    outbound = OutboundConnector(resolve=resolve)
    assert set(ADDRESSES) == set(SERVICES)
    with caplog.at_level(logging.DEBUG):
        for scheme, (address, host) in ADDRESSES.items():
            asked.clear()
            await apprise.check(address)
            failed = await refusal(apprise, outbound, address)
            assert "private network" in failed.detail, scheme
            assert set(asked) == {(host, 443)}, scheme
    outbound.close()
    assert SECRET not in caplog.text
    assert TOKEN not in caplog.text


async def test_a_message_arrives_over_tls(
    apprise: AppriseSender, outbound: OutboundConnector, certs: Certificates
) -> None:
    async with hook(certs.context) as receiver:
        assert await apprise.send(outbound, address_of(receiver), WORDING) == "HTTP 200"
        [got] = receiver.got
        assert (got.path, got.headers["x-gotify-key"]) == ("/message", TOKEN)
        assert got.document["title"] == "Job cats failed"
        assert got.document["message"] == "out of memory\nhttps://fleet.example.org/jobs/1"


async def test_what_is_answered_is_judged_as_of_a_webhook_and_no_redirect_is_followed(
    apprise: AppriseSender, outbound: OutboundConnector, strict: OutboundConnector, certs: Certificates
) -> None:
    async with hook(certs.context) as elsewhere, hook(certs.context) as receiver:
        receiver.statuses, receiver.headers = [307, 500, 410], {"location": elsewhere.url}
        address = address_of(receiver)
        assert "redirects" in (await refusal(apprise, outbound, address)).detail
        failed = await refusal(apprise, outbound, address)
        assert (failed.detail, failed.hopeless) == ("HTTP 500", False)
        assert (await refusal(apprise, outbound, address)).hopeless
        receiver.statuses, receiver.headers = [429], {"retry-after": "120"}
        assert (await refusal(apprise, outbound, address)).wait_s == 120
        assert elsewhere.got == []
        assert "private network" in (await refusal(apprise, strict, address)).detail
        receiver.frozen = True
        assert "within 0.2 s" in (await refusal(apprise, outbound, address, 0.2)).detail
    async with hook() as plain:
        address = address_of(plain).replace("http://127.0.0.1", "gotifys://127.0.0.1")
        await refusal(apprise, outbound, address, 0.2)
        assert plain.got == [], "nothing is said without TLS"


async def test_an_endless_answer_is_not_listened_to(
    apprise: AppriseSender, outbound: OutboundConnector, certs: Certificates
) -> None:
    async def endless(reader: object, writer: object) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")  # type: ignore[attr-defined]
        while True:
            writer.write(b"x" * 4096)  # type: ignore[attr-defined]
            await writer.drain()  # type: ignore[attr-defined]

    async with listening(endless, certs.context) as port:
        failed = await refusal(apprise, outbound, f"gotifys://localhost:{port}/{TOKEN}")
        assert failed.detail == "Its answer is too long."


async def test_a_jobs_name_is_no_link_and_calls_nobody(
    apprise: AppriseSender, outbound: OutboundConnector, certs: Certificates
) -> None:
    named = Wording(title="Job [log in](https://evil.example) @all failed", link="https://fleet.example.org")
    async with hook(certs.context) as receiver:
        address = receiver.url.replace("https://", "mmosts://").replace("/hook", f"/{'a' * 26}")
        await apprise.send(outbound, address, named)
        text = receiver.got[0].document["text"]
        assert r"\[log in\]\(https://evil.example\)" in text
        assert "@all" not in text
        assert "https://fleet.example.org" in text


async def test_an_address_that_apprise_cannot_read_is_refused_with_an_example(apprise: AppriseSender) -> None:
    with pytest.raises(Invalid, match="tgram://BOT_TOKEN/CHAT_ID") as refused:
        await apprise.check("tgram://thisisnotatoken")
    assert "thisisnotatoken" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["mmosts", "rockets", "twilio"])
async def test_a_long_digest_is_cut_to_what_the_service_takes(
    apprise: AppriseSender,
    certs: Certificates,
    scheme: str,
) -> None:
    """A service refuses what is longer: the same digest would be tried for days, and all that follows waits."""
    lines = tuple(f"Job {number:02} {'x' * 120} failed" for number in range(50))
    digest = Wording(title="50 messages", lines=lines, link="https://fleet.example.org")
    most = {"mmosts": 4_000, "rockets": 5_000, "twilio": 1_600}[scheme]
    async with hook(certs.context) as receiver:
        receiver.headers = {"content-type": "application/json"}
        port = int(receiver.url.rsplit(":", 1)[1].split("/")[0])
        outbound = ToLocalhost(port, certs)
        with suppress(DeliveryFailed):
            await apprise.send(outbound, ADDRESSES[scheme][0], digest)
        outbound.close()
        body = receiver.got[0].body.decode()
        text = dict(parse_qsl(body))["Body"] if scheme == "twilio" else json.loads(body)["text"]
        assert most - 200 < len(text) <= most
        assert "50 messages" in text


async def test_a_message_that_took_too_long_is_not_sent_afterwards(
    outbound: OutboundConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is over between the look at that and the sending: nobody else would end what is sent then."""
    carrier = RequestCarrier(outbound, asyncio.get_running_loop())
    hand_over = asyncio.run_coroutine_threadsafe

    def too_late(asked: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Future[Any]:
        carrier.close()
        return hand_over(asked, loop)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", too_late)
    async with hook() as frozen:
        frozen.frozen = True
        url = frozen.url.replace("http://", "https://")
        sending = asyncio.create_task(asyncio.to_thread(carrier.carry, "POST", url, {}, b"x"))
        try:
            async with asyncio.timeout(3):
                with pytest.raises(DeliveryFailed, match="too long"):
                    await asyncio.shield(sending)
        finally:
            carrier.close()


async def test_frozen_services_hold_up_nobody_elses_message(
    outbound: OutboundConnector, certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for a thread, which is no fault of theirs: their time begins with their turn."""
    monkeypatch.setattr(apprise_sending, "THREADS", 2)
    apprise = AppriseSender()

    async def in_turn(address: str, timeout_s: float) -> str:
        async with apprise.turns:
            try:
                return await apprise.send(outbound, address, WORDING, timeout_s)
            except DeliveryFailed as failed:
                return failed.detail

    async with hook(certs.context) as frozen, hook(certs.context) as well:
        frozen.frozen = True
        stuck = [asyncio.create_task(in_turn(address_of(frozen), 1.0)) for _ in range(4)]
        await asyncio.sleep(0.2)
        assert await in_turn(address_of(well), 0.5) == "HTTP 200"
        assert set(await asyncio.gather(*stuck)) == {"No answer within 1 s."}
    apprise.close()
