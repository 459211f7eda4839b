"""Sends one request of any method to an untrusted server, to the checked address only, and reads its answer."""

import asyncio
from collections.abc import Iterable

import h11
from msgspec import Struct

from simpletuner_fleet.core.notices.checking import URL, place_of
from simpletuner_fleet.delivery.http_post import MAX_ANSWER_BYTES
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.outcome import DeliveryFailed

READ_BYTES = 16 * 1024


class ServiceAnswer(Struct, frozen=True):
    status: int
    fields: dict[str, str]
    content: bytes


async def exchange(
    outbound: OutboundConnector, method: str, url: str, headers: Iterable[tuple[str, str]], body: bytes
) -> ServiceAnswer:
    """Returns the answer. Raises DeliveryFailed where nobody may be called there, or what comes is no answer.

    The caller bounds the time.
    """
    if not url.startswith("https://") or not URL.fullmatch(url):
        raise DeliveryFailed("Services are called with TLS alone.", hopeless=True)
    _, host, port, path = place_of(url)
    reader, writer = await outbound.connect(host, port, tls=True)
    try:
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_ANSWER_BYTES)
        for event in _request(method, host, port, path, headers, body):
            writer.write(connection.send(event) or b"")
        await writer.drain()
        return await _answer(connection, reader)
    except (OSError, EOFError, h11.ProtocolError) as error:
        raise DeliveryFailed(f"It gave no answer that is HTTP: {type(error).__name__}.") from None
    finally:
        writer.transport.abort()


def _request(
    method: str, host: str, port: int, path: str, headers: Iterable[tuple[str, str]], body: bytes
) -> Iterable[h11.Event]:
    named = f"[{host}]" if ":" in host else host
    ours = {"host": named if port == 443 else f"{named}:{port}", "connection": "close"}
    fields = {name.lower(): value for name, value in headers} | ours
    fields |= {"content-length": str(len(body)), "accept-encoding": "identity"}
    target = path if path.startswith("/") else f"/{path}"
    yield h11.Request(method=method, target=target, headers=list(fields.items()))
    if body:
        yield h11.Data(data=body)
    yield h11.EndOfMessage()


async def _answer(connection: h11.Connection, reader: asyncio.StreamReader) -> ServiceAnswer:
    head: h11.Response | None = None
    content = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            content += event.data
            if len(content) > MAX_ANSWER_BYTES:
                raise DeliveryFailed("Its answer is too long.")
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
            return ServiceAnswer(head.status_code, fields, bytes(content))
        elif isinstance(event, h11.ConnectionClosed):
            raise EOFError
