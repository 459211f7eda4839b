"""Sends one request to a cloud's metadata service: no proxy, no redirect, a small answer in a short time."""

import asyncio
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import h11
from msgspec import Struct

METADATA_URL = "http://169.254.169.254"
"""Of all three clouds. Link-local: no router passes it on, so that whoever answers is at this machine's own network."""
ANSWER_WITHIN_S = 2.0
MAX_ANSWER_BYTES = 256 * 1024


class MetadataAnswer(Struct, frozen=True, kw_only=True):
    status: int
    headers: Mapping[str, str]
    """By their names in small letters."""
    content: bytes
    at: float | None = None
    """The time of day where it was answered, if it says so."""


class MetadataService:
    def __init__(self, url: str = METADATA_URL) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80

    async def ask(
        self,
        target: str,
        headers: Mapping[str, str],
        method: str = "GET",
        within_s: float = ANSWER_WITHIN_S,
    ) -> MetadataAnswer | None:
        """Returns None where there was no answer, or none that is HTTP."""
        try:
            async with asyncio.timeout(within_s):
                return await self._exchange(method, target, headers)
        except (OSError, TimeoutError, EOFError, h11.ProtocolError):
            return None

    async def _exchange(self, method: str, target: str, headers: Mapping[str, str]) -> MetadataAnswer:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            http = h11.Connection(h11.CLIENT)
            lines = [("Host", self._host), ("Connection", "close"), ("Content-Length", "0"), *headers.items()]
            request = h11.Request(method=method, target=target, headers=lines)
            writer.write((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
            return await _answer(http, reader)
        finally:
            writer.transport.abort()


async def _answer(http: h11.Connection, reader: asyncio.StreamReader) -> MetadataAnswer:
    status, headers, content = 0, dict[str, str](), bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(64 * 1024))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        elif isinstance(event, h11.Data):
            content += event.data
            if len(content) > MAX_ANSWER_BYTES:
                raise h11.RemoteProtocolError("an answer that no metadata service gives")
        elif isinstance(event, h11.EndOfMessage):
            at = _time_of(headers.get("date", ""))
            return MetadataAnswer(status=status, headers=headers, content=bytes(content), at=at)
        elif isinstance(event, h11.ConnectionClosed):
            raise EOFError


def _time_of(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
