"""Sends one POST to an untrusted server, only to the address that was checked: no redirects, little read or waited."""

import asyncio
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.notices.checking import place_of
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.outcome import DeliveryFailed

TIMEOUT_S = 15.0
MAX_ANSWER_BYTES = 64 * 1024
GONE = 410
BUSY = (429, 503)


async def post(
    outbound: OutboundConnector,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    now: float,
    timeout_s: float = TIMEOUT_S,
) -> str:
    """Returns what was answered, in a few words. Raises DeliveryFailed for anything but a 2xx."""
    try:
        async with asyncio.timeout(timeout_s):
            status, fields = await _exchange(outbound, url, body, headers)
    except TimeoutError:
        raise DeliveryFailed(f"No answer within {timeout_s:g} s.") from None
    return judged(status, fields, now)


def judged(status: int, fields: Mapping[str, str], now: float) -> str:
    """Returns what was answered, in a few words. Raises DeliveryFailed for anything but a 2xx."""
    if 200 <= status < 300:
        return f"HTTP {status}"
    if 300 <= status < 400:
        raise DeliveryFailed(f"HTTP {status}: it redirects, which is not followed. Set the final address.")
    wait_s = _wait_s(fields.get("retry-after", ""), now) if status in BUSY else 0.0
    raise DeliveryFailed(f"HTTP {status}", hopeless=status == GONE, wait_s=wait_s)


async def _exchange(
    outbound: OutboundConnector, url: str, body: bytes, headers: Mapping[str, str]
) -> tuple[int, dict[str, str]]:
    try:
        scheme, host, port, path = place_of(url)
    except Invalid:
        raise DeliveryFailed("Its address is not a URL.", hopeless=True) from None
    reader, writer = await outbound.connect(host, port, tls=scheme == "https")
    try:
        writer.write(_head(host, port, path, len(body), headers) + body)
        await writer.drain()
        return await _answer(reader)
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        raise DeliveryFailed(f"It gave no answer that is HTTP: {type(error).__name__}.") from None
    finally:
        writer.transport.abort()


def _head(host: str, port: int, path: str, length: int, headers: Mapping[str, str]) -> bytes:
    target = path if path.startswith("/") else f"/{path}"
    named = f"[{host}]" if ":" in host else host
    lines = [
        f"POST {target} HTTP/1.1",
        f"host: {named}:{port}" if port not in (80, 443) else f"host: {named}",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"content-length: {length}", "connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Reads the head alone: the body of an untrusted server is for nobody here."""
    head = await reader.readuntil(b"\r\n\r\n")
    if len(head) > MAX_ANSWER_BYTES:
        raise ValueError("the head is too large")
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError("not HTTP")
    fields = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            fields[name.strip().lower()] = value.strip()
    return int(rest[:3]), fields


def _wait_s(text: str, now: float) -> float:
    try:
        return (
            max(0.0, float(text))
            if text.isdigit()
            else max(0.0, parsedate_to_datetime(text).timestamp() - now)
        )
    except (ValueError, TypeError, OverflowError):
        return 0.0
