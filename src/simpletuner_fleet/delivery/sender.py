"""Delivers one message to one endpoint, whatever protocol that speaks."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime

from msgspec import Struct

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.notices.endpoint import Channel
from simpletuner_fleet.core.notices.kinds import Notice
from simpletuner_fleet.delivery import formats
from simpletuner_fleet.delivery.apprise.sending import AppriseSender
from simpletuner_fleet.delivery.http_post import post
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.outcome import DeliveryFailed
from simpletuner_fleet.delivery.signing import signed
from simpletuner_fleet.delivery.smtp import Relay, send_mail
from simpletuner_fleet.delivery.syslog import send_lines
from simpletuner_fleet.delivery.wording import NO_LINKS, Wording, trial_wording, wording_of
from simpletuner_fleet.languages import translator

AGENT = "SimpleTuner-Fleet"
MAILS_AT_ONCE = 10
"""A mail server refuses those that call it a thousand times at once."""
NO_APPRISE = (
    "This server has no Apprise: its owner installs it with pip install 'simpletuner-fleet[apprise]'."
)


class Destination(Struct, frozen=True, kw_only=True):
    """Says where a message goes: an endpoint's address and keys, unsealed for this one message."""

    channel: Channel
    address: str
    language: str = "en"
    keys: tuple[str, ...] = ()


class Message(Struct, frozen=True, kw_only=True):
    """Holds notices, or entries of the audit log. A message with neither is a test."""

    id: str
    notices: tuple[Notice, ...] = ()
    entries: tuple[AuditEntry, ...] = ()
    links: dict[str, str] = {}
    """Paths of pages on which its one reader approves or rejects, by job."""


class MessageSender:
    def __init__(
        self,
        outbound: OutboundConnector,
        relay: Relay | None,
        base_url: str,
        hostname: str,
        apprise: AppriseSender | None = None,
    ) -> None:
        """`relay` is None where the server has no mail server, `apprise` where that extra is not installed."""
        self._outbound = outbound
        self._relay = relay
        self.apprise = apprise
        self._base_url = base_url.rstrip("/")
        self._hostname = hostname
        self._mail_turns = asyncio.Semaphore(MAILS_AT_ONCE)

    @property
    def has_mail(self) -> bool:
        return self._relay is not None

    def close(self) -> None:
        self._outbound.close()
        if self.apprise:
            self.apprise.close()

    def turn(self, channel: Channel) -> AbstractAsyncContextManager[None]:
        """Waits until a message may be sent there, and is to be held while it is: what it waits is no failure of it."""
        match channel:
            case Channel.EMAIL:
                return self._mail_turns
            case Channel.APPRISE if self.apprise:
                return self.apprise.turns
            case _:
                return nullcontext()

    async def send(self, to: Destination, message: Message) -> str:
        """Returns what came of it in a few words. Raises DeliveryFailed."""
        match to.channel:
            case Channel.SYSLOG:
                return await send_lines(self._outbound, to.address, self._hostname, message.entries)
            case Channel.EMAIL:
                return await self._mail(to, message)
            case Channel.APPRISE:
                if self.apprise is None:
                    raise DeliveryFailed(NO_APPRISE)
                return await self.apprise.send(self._outbound, to.address, self._wording(to, message.notices))
            case Channel.WEBHOOK:
                return await self._post(to, message, self._document(message), formats.JSON)
            case _:
                body, headers = formats.chat_document(to.channel, self._wording(to, message.notices))
                return await self._post(to, message, body, headers)

    async def _post(self, to: Destination, message: Message, body: bytes, headers: dict[str, str]) -> str:
        now = time.time()
        signatures = signed(to.keys, message.id, now, body) if to.keys else {}
        return await post(
            self._outbound, to.address, body, {"user-agent": AGENT, **headers, **signatures}, now
        )

    async def _mail(self, to: Destination, message: Message) -> str:
        if self._relay is None:
            raise DeliveryFailed("This server has no mail server: its owner sets one with --smtp-url.")
        wording = self._wording(to, message.notices, message.links)
        return await send_mail(
            self._outbound,
            self._relay,
            to.address,
            wording.title,
            wording.text + "\n",
            message.id,
            time.time(),
        )

    def _document(self, message: Message) -> bytes:
        if message.entries:
            return formats.audit_document(message.entries, _text_of(message.entries[-1].at))
        if message.notices:
            notice = message.notices[0]
            return formats.notice_document(notice, self._base_url, _text_of(notice.at))
        return formats.trial_document(_text_of(time.time()))

    def _wording(
        self, to: Destination, notices: Sequence[Notice], links: Mapping[str, str] = NO_LINKS
    ) -> Wording:
        words = translator(to.language)
        if not notices:
            return trial_wording(words, self._base_url)
        return wording_of(words, notices, self._base_url, links)


def _text_of(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
