"""Makes the bodies that webhooks and chats accept."""

import base64
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.notices.endpoint import Channel
from simpletuner_fleet.core.notices.kinds import Notice
from simpletuner_fleet.delivery.wording import Wording, link_to

JSON = {"content-type": "application/json"}
DISCORD_CHARS, SLACK_CHARS, NTFY_BYTES = 2_000, 3_000, 4_096
MARKDOWN = re.compile(r"[\\*_~`|>#\[\]()<-]")
TEST_EVENT = "test"
AUDIT_EVENT = "audit.entries"


def notice_document(notice: Notice, base_url: str, at_text: str) -> bytes:
    data: dict[str, Any] = {f"{notice.target_type}_id": notice.target_id, "name": notice.title}
    data |= {"owner": notice.owner, "seq": notice.seq, "url": link_to(notice, base_url), **notice.details}
    return msgspec.json.encode({"type": notice.kind, "timestamp": at_text, "data": data})


def trial_document(at_text: str) -> bytes:
    return msgspec.json.encode({"type": TEST_EVENT, "timestamp": at_text, "data": {}})


def audit_document(entries: Sequence[AuditEntry], at_text: str) -> bytes:
    """Writes all columns, so that the receiver can check the chain by itself."""
    return msgspec.json.encode({"type": AUDIT_EVENT, "timestamp": at_text, "data": {"entries": entries}})


def chat_document(channel: Channel, wording: Wording) -> tuple[bytes, dict[str, str]]:
    """Returns body and headers."""
    match channel:
        case Channel.SLACK:
            return msgspec.json.encode({"text": _slack(wording)}), JSON
        case Channel.DISCORD:
            content = _cut(_discord(wording), DISCORD_CHARS)
            return msgspec.json.encode({"content": content, "allowed_mentions": {"parse": []}}), JSON
        case Channel.TEAMS:
            return msgspec.json.encode(_teams(wording)), JSON
        case _:
            return _cut_bytes(wording.text or wording.title, NTFY_BYTES), _ntfy_headers(wording)


def _slack(wording: Wording) -> str:
    """Makes a message for Slack, which reads <, > and & as its own: a job's name must not notify a whole channel."""

    def plain(text: str) -> str:
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    lines = [f"*{plain(wording.title)}*", *map(plain, wording.lines)]
    text = _cut("\n".join(lines), SLACK_CHARS)
    return f"{text}\n<{wording.link}>" if wording.link else text


def _discord(wording: Wording) -> str:
    """Makes a message for Discord, which shows [words](address) as a link: a job's name must not lead elsewhere."""
    lines = [f"**{unmarked(wording.title)}**", *map(unmarked, wording.lines)]
    return "\n".join([*lines, wording.link] if wording.link else lines)


def unmarked(text: str) -> str:
    return MARKDOWN.sub(r"\\\g<0>", text)


def _teams(wording: Wording) -> dict[str, Any]:
    """Makes an adaptive card for the Workflows app. A TextRun is shown as it is, where a TextBlock is Markdown."""
    title = {"type": "TextRun", "text": wording.title, "weight": "Bolder"}
    runs = [title, *({"type": "TextRun", "text": line} for line in wording.lines)]
    blocks = [{"type": "RichTextBlock", "inlines": [run]} for run in runs]
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": blocks,
    }
    if wording.link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": wording.link, "url": wording.link}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [attachment]}


def _ntfy_headers(wording: Wording) -> dict[str, str]:
    title = base64.b64encode(wording.title.encode()).decode()
    headers = {"content-type": "text/plain; charset=utf-8", "title": f"=?UTF-8?B?{title}?="}
    headers["priority"] = "high" if wording.bad else "default"
    if wording.link:
        headers["click"] = wording.link
    return headers


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _cut_bytes(text: str, most: int) -> bytes:
    whole, dots = text.encode(), "…".encode()
    if len(whole) <= most:
        return whole
    return whole[: most - len(dots)].decode(errors="ignore").encode() + dots
