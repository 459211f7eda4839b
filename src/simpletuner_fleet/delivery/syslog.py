"""Sends audit entries as RFC 5424 lines over TCP or TLS, framed by their length (RFC 6587, RFC 5425)."""

import asyncio
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime

from simpletuner_fleet.core.audit import AuditEntry, canonical
from simpletuner_fleet.core.notices.checking import place_of
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.outcome import DeliveryFailed

TIMEOUT_S = 15.0
AUDIT_NOTICE = 13 * 8 + 5
"""Facility log audit, severity notice."""
APP = "simpletuner-fleet"
NUMBER = "simpletuner@32473"
"""32473 is the enterprise number that RFC 5612 sets aside for those who have none."""


async def send_lines(
    outbound: OutboundConnector, address: str, hostname: str, entries: Sequence[AuditEntry]
) -> str:
    """Sends the entries. Syslog answers nothing: they are delivered once the receiver has read all and closed."""
    scheme, host, port, _ = place_of(address)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await outbound.connect(host, port, tls=scheme == "tls")
            try:
                writer.writelines([framed(line(entry, hostname)) for entry in entries])
                await writer.drain()
                if writer.can_write_eof():
                    writer.write_eof()
                    await reader.read(1)  # a receiver closes once it has read all
                writer.close()
                await writer.wait_closed()
            finally:
                writer.transport.abort()
    except TimeoutError:
        raise DeliveryFailed(f"It did not take the entries within {TIMEOUT_S:g} s.") from None
    except (OSError, ssl.SSLError) as error:
        raise DeliveryFailed(f"It broke off: {type(error).__name__}.") from None
    return "sent"


def framed(text: bytes) -> bytes:
    return f"{len(text)} ".encode() + text


def line(entry: AuditEntry, hostname: str) -> bytes:
    """Writes one entry: what it is in the header, who and whom as structured data, all of it as JSON in the message."""
    at = datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    fields = {
        "seq": str(entry.seq),
        "actor": entry.actor_id,
        "actorName": entry.actor_name,
        "ip": entry.ip,
        "targetType": entry.target_type,
        "target": entry.target_id,
        "hash": entry.hash,
    }
    data = " ".join(f'{name}="{_escaped(value)}"' for name, value in fields.items() if value)
    head = (
        f"<{AUDIT_NOTICE}>1 {at} {_word(hostname)} {APP} - {_word(entry.event_type)[:32]} [{NUMBER} {data}]"
    )
    return f"{head} {canonical(entry.details)}".encode()


def _escaped(value: str) -> str:
    plain = "".join(one if one.isprintable() else " " for one in value)
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("]", "\\]")


def _word(text: str) -> str:
    return "".join(one for one in text if "!" <= one <= "~")[:255] or "-"
