"""Sends mail to one person through the server's own relay: TLS from the start or by STARTTLS, password optional."""

import asyncio
import base64
from collections.abc import Collection
from email.headerregistry import Address as MailAddress
from email.message import EmailMessage
from email.utils import formatdate

from msgspec import Struct

from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.outcome import DeliveryFailed

TIMEOUT_S = 30.0
MAX_REPLY_LINES = 100
NO_SUCH_MAILBOX = (550, 551, 553)
"""Answered to the name of a mailbox. To anything else they say something of us, and nothing of the mailbox."""


class Relay(Struct, frozen=True, kw_only=True):
    """Describes the mail server that sends our mail, as its settings say."""

    host: str
    port: int
    security: str
    """`tls` from the first byte, `starttls`, or `plain` for a relay on the same machine or network."""
    sender: str
    user: str = ""
    password: str = ""


async def send_mail(
    outbound: OutboundConnector, relay: Relay, to: str, subject: str, text: str, message_id: str, at: float
) -> str:
    """Sends one mail. Raises DeliveryFailed unless the relay has taken it."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _deliver(outbound, relay, to, _mail(relay, to, subject, text, message_id, at))
    except TimeoutError:
        raise DeliveryFailed(f"The mail server did not answer within {TIMEOUT_S:g} s.") from None
    except (OSError, EOFError, ValueError) as error:
        raise DeliveryFailed(f"The mail server broke off: {type(error).__name__}.") from None


async def _deliver(outbound: OutboundConnector, relay: Relay, to: str, mail: bytes) -> str:
    reader, writer = await outbound.open_relay(relay.host, relay.port, tls=relay.security == "tls")
    try:
        talk = Conversation(reader, writer)
        await talk.expect(220)
        offers = await talk.say("EHLO simpletuner", 250)
        if relay.security == "starttls":
            await talk.say("STARTTLS", 220)
            if getattr(
                reader, "_buffer", b""
            ):  # said in the clear, and to be taken for what is said in secret
                raise DeliveryFailed("The mail server spoke out of turn before TLS began.")
            await outbound.secure(writer, relay.host)
            offers = await talk.say("EHLO simpletuner", 250)
        if relay.user:
            await _log_in(talk, relay, offers)
        await talk.say(f"MAIL FROM:<{relay.sender}>", 250)
        await talk.say(f"RCPT TO:<{to}>", 250, 251, hopeless=NO_SUCH_MAILBOX)
        await talk.say("DATA", 354)
        writer.write(mail.replace(b"\r\n.", b"\r\n..") + b"\r\n.\r\n")
        await talk.expect(250)
        writer.write(b"QUIT\r\n")
        return "the mail server has taken it"
    finally:
        writer.transport.abort()


async def _log_in(talk: "Conversation", relay: Relay, offers: list[str]) -> None:
    """Logs in. A password is sent over an encrypted connection, or not at all."""
    if relay.security == "plain":
        raise DeliveryFailed(
            "A password is never sent without TLS: name the mail server as smtp:// or smtps://."
        )
    methods = next((line.upper().split()[1:] for line in offers if line.upper().startswith("AUTH")), [])
    if "PLAIN" in methods:
        proof = base64.b64encode(f"\0{relay.user}\0{relay.password}".encode()).decode()
        await talk.say(f"AUTH PLAIN {proof}", 235)
    elif "LOGIN" in methods:
        await talk.say("AUTH LOGIN", 334)
        await talk.say(base64.b64encode(relay.user.encode()).decode(), 334)
        await talk.say(base64.b64encode(relay.password.encode()).decode(), 235)
    else:
        raise DeliveryFailed("The mail server takes no password by PLAIN or LOGIN.")


class Conversation:
    """Exchanges lines with the mail server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, line: str, *good: int, hopeless: Collection[int] = ()) -> list[str]:
        self._writer.write(f"{line}\r\n".encode())
        return await self.expect(*good, hopeless=hopeless)

    async def expect(self, *good: int, hopeless: Collection[int] = ()) -> list[str]:
        lines: list[str] = []
        while len(lines) < MAX_REPLY_LINES:
            line = (await self._reader.readuntil(b"\n")).decode("latin-1").rstrip()
            lines.append(line[4:])
            if line[3:4] == "-":
                continue
            code = int(line[:3])
            if code in good:
                return lines
            raise DeliveryFailed(f"The mail server refused: {code}", hopeless=code in hopeless)
        raise ValueError("too many lines")


def _mail(relay: Relay, to: str, subject: str, text: str, message_id: str, at: float) -> bytes:
    mail = EmailMessage()
    user, _, domain = relay.sender.rpartition("@")
    mail["From"] = MailAddress("SimpleTuner", user, domain)
    mail["To"] = to
    mail["Subject"] = " ".join(subject.split())
    mail["Date"] = formatdate(at)
    mail["Message-ID"] = f"<{message_id}@{domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text, cte="base64")
    return mail.as_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
