"""One POST: what counts as delivered, and how little of the other side is listened to."""

import asyncio

import pytest

from simpletuner_fleet.delivery.http_post import post
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.outcome import DeliveryFailed
from simpletuner_fleet.delivery.signing import new_key, signed
from tests.delivery.receivers import Certificates, hook, listening


async def test_a_message_arrives_over_tls_with_a_signature_for_each_valid_secret(
    outbound: OutboundConnector, certs: Certificates
) -> None:
    old, new = new_key(), new_key()
    async with hook(certs.context) as receiver:
        headers = signed([old, new], "msg_1", 1_700_000_000.9, b'{"a":1}')
        assert await post(outbound, receiver.url, b'{"a":1}', headers, 0.0) == "HTTP 200"
        [got] = receiver.got
        assert (got.path, got.document, got.headers["webhook-id"]) == ("/hook", {"a": 1}, "msg_1")
        assert got.is_signed_with(old)
        assert got.is_signed_with(new)
        assert not got.is_signed_with(new_key())


def test_the_signature_is_that_of_the_published_example() -> None:
    """From the specification of Standard Webhooks."""
    headers = signed(
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_a_redirect_is_not_followed(outbound: OutboundConnector) -> None:
    async with hook() as elsewhere, hook() as receiver:
        receiver.statuses, receiver.headers = [307], {"location": elsewhere.url}
        with pytest.raises(DeliveryFailed, match="redirects"):
            await post(outbound, receiver.url, b"{}", {}, 0.0)
        assert elsewhere.got == []


async def test_a_refusal_says_its_status_and_nothing_that_the_other_side_wrote(
    outbound: OutboundConnector,
) -> None:
    async with hook() as receiver:
        receiver.statuses, receiver.tail = [500], b"<b>internal secrets</b>"
        with pytest.raises(DeliveryFailed) as failed:
            await post(outbound, receiver.url, b"{}", {}, 0.0)
        assert failed.value.detail == "HTTP 500"
        assert not failed.value.hopeless


@pytest.mark.parametrize(
    ("status", "retry_after", "wait_s"),
    [
        (429, "120", 120.0),
        (503, "Thu, 01 Jan 1970 00:02:00 GMT", 20.0),
        (503, "soon", 0.0),
        (500, "120", 0.0),
    ],
)
async def test_who_asks_to_wait_is_given_time(
    outbound: OutboundConnector, status: int, retry_after: str, wait_s: float
) -> None:
    async with hook() as receiver:
        receiver.statuses, receiver.headers = [status], {"retry-after": retry_after}
        with pytest.raises(DeliveryFailed) as failed:
            await post(outbound, receiver.url, b"{}", {}, 100.0)
        assert failed.value.wait_s == wait_s


async def test_who_says_gone_wants_nothing_more(outbound: OutboundConnector) -> None:
    async with hook() as receiver:
        receiver.statuses = [410]
        with pytest.raises(DeliveryFailed) as failed:
            await post(outbound, receiver.url, b"{}", {}, 0.0)
        assert failed.value.hopeless


async def test_who_answers_nothing_or_endlessly_is_left_soon(outbound: OutboundConnector) -> None:
    async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"x: " + b"y" * 10_000 + b"\r\n")
            await asyncio.sleep(0)

    async def talks_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org\r\n\r\n")

    async with hook() as frozen:
        frozen.frozen = True
        with pytest.raises(DeliveryFailed, match="No answer within"):
            await post(outbound, frozen.url, b"{}", {}, 0.0, timeout_s=0.2)
    for serve in (drips, talks_nonsense):
        async with listening(serve) as port:
            with pytest.raises(DeliveryFailed, match="HTTP"):
                await post(outbound, f"http://127.0.0.1:{port}/", b"{}", {}, 0.0, timeout_s=5.0)
