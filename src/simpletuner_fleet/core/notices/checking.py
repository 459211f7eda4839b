"""Checks the address and the rules of a notification endpoint that somebody sets up."""

import re
from collections.abc import Sequence

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.mail_addresses import MAIL
from simpletuner_fleet.core.notices.endpoint import FOR_PROGRAMS, Channel, NoticeRules
from simpletuner_fleet.core.notices.kinds import AUDIT, KINDS, possible_events
from simpletuner_fleet.core.notices.services import service_of

MAX_NAME_CHARS = 64
MAX_ADDRESS_CHARS = 2_000
MAX_OF_ONE_OWNER = 20
HOST = r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])"
LABEL = r"[A-Za-z0-9_-]{1,63}"
LOOKED_UP = rf"(?={HOST}(?:[:/?]|\Z))(?:{LABEL}(?:\.{LABEL})*\.?|\[.*?\])"
"""A host of which no part is empty or too long. Addresses from before this was asked may have another."""
URL = re.compile(rf"https?://{LOOKED_UP}(?::[0-9]{{1,5}})?(?:[/?][!-~]*)?", re.ASCII)
SYSLOG = re.compile(rf"(?:tls|tcp)://{LOOKED_UP}(?::[0-9]{{1,5}})?/?", re.ASCII)
SERVICE = re.compile(r"[a-z]+://[!-~]+", re.ASCII)
SHAPES = {
    Channel.EMAIL: (MAIL, "an e-mail address, such as anna@example.org"),
    Channel.SYSLOG: (SYSLOG, "tls://HOST:6514 or tcp://HOST:601"),
    Channel.APPRISE: (SERVICE, "one of Apprise, such as tgram://BOT_TOKEN/CHAT_ID"),
}
A_URL = (URL, "a URL, such as https://example.org/hook")
KEPT_OF_PATH_CHARS = 4
WHERE = re.compile(rf"([a-z]+)://({HOST})(?::([0-9]{{1,5}}))?(.*)", re.ASCII | re.DOTALL)
PORTS = {"http": 80, "https": 443, "tls": 6514, "tcp": 601}


def check_name(name: str) -> str:
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
        raise Invalid(
            f"A name must have 1 to {MAX_NAME_CHARS} printable characters and no leading or trailing spaces.",
            path="$.name",
        )
    return name


def check_address(channel: Channel, address: str) -> str:
    shape, example = SHAPES.get(channel, A_URL)
    if len(address) > MAX_ADDRESS_CHARS or not shape.fullmatch(address):
        raise Invalid(f"The address must be {example}.", path="$.address")
    if channel is Channel.APPRISE:
        service_of(address)
    elif channel is not Channel.EMAIL and not 0 < place_of(address)[2] < 65_536:
        raise Invalid("The port of the address must be between 1 and 65535.", path="$.address")
    return address


def place_of(address: str) -> tuple[str, str, int, str]:
    """Returns scheme, host, port and the rest of a checked URL."""
    match = WHERE.fullmatch(address)
    if match is None:
        raise Invalid("The address is not a URL.", path="$.address")
    scheme, host, port, rest = match.groups()
    return scheme, host.strip("[]"), int(port) if port else PORTS[scheme], rest


def shown_address(channel: Channel, address: str) -> str:
    """Returns an address that may be shown: after the host only its end, since a chat's URL is like a password."""
    if channel in (Channel.EMAIL, Channel.SYSLOG):
        return address
    if channel is Channel.APPRISE:  # all that follows the scheme may be secret, the host as well
        scheme, _, secret = address.partition("://")
        return f"{scheme}://…{secret[-KEPT_OF_PATH_CHARS:] if len(secret) > 5 * KEPT_OF_PATH_CHARS else ''}"
    match = WHERE.fullmatch(address)
    rest = match[4] if match else ""
    if len(rest) <= 1:
        return address
    host = address[: len(address) - len(rest)]
    return f"{host}/…{rest[-KEPT_OF_PATH_CHARS:]}" if len(rest) > 3 * KEPT_OF_PATH_CHARS else f"{host}/…"


def check_rules(channel: Channel, rules: NoticeRules) -> NoticeRules:
    possible = possible_events(channel)
    _check_events(rules.events, possible)
    if AUDIT in rules.events and len(rules.events) > 1:
        raise Invalid("The audit log goes to an endpoint of its own: 'audit' stands alone.", path="$.events")
    if channel in FOR_PROGRAMS and (rules.quiet or rules.digest != "none"):
        raise Invalid(
            f"Quiet hours and digests are for people; a {channel} gets every event at once.", path="$.digest"
        )
    minutes = [rules.digest_at, *((rules.quiet.start, rules.quiet.end) if rules.quiet else ())]
    if not all(0 <= minute < 24 * 60 for minute in minutes):
        raise Invalid("A time of day is a minute from 00:00 to 23:59.", path="$.quiet")
    return rules


def _check_events(events: Sequence[str], possible: Sequence[str]) -> None:
    if not events:
        raise Invalid(
            "Choose at least one event.", path="$.events", next_step=f"Known: {', '.join(possible)}."
        )
    unknown = next((event for event in events if event not in possible), None)
    if unknown is not None:
        what = "cannot be told there" if unknown in (*KINDS, AUDIT) else "is not an event"
        raise Invalid(
            f"'{unknown[:100]}' {what}.", path="$.events", next_step=f"Known: {', '.join(possible)}."
        )
