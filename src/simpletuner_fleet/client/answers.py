"""Tells the orchestrator's own answers from those of whoever stands in between, which say nothing about what was asked.

A captive portal, a firewall or a proxy's login page answers with HTML and status 200. What counts is the content type,
what our own headers say, and that the content can be unpacked.
"""

from collections.abc import Mapping

JSON, TEXT, EVENTS, BYTES = "application/json", "text/plain", "text/event-stream", "application/octet-stream"
PAGE = "text/html"
OWN_HEADERS = {TEXT: "x-log-attempt"}
"""What stands in every answer of a kind that others have, too: text is that of a log."""
KNOWN_ENCODINGS = ("", "identity", "gzip", "deflate")
"""What a proxy may pack an answer in; anything else would be read as it is."""
NOT_PACKED = {"Accept-Encoding": "identity"}
"""Asks whoever stands in between to pass on what comes as it comes: packed, an event would wait for the next ones."""


def is_ours(headers: Mapping[str, str], kind: str) -> bool:
    """Tells whether an answer is of the content type that the orchestrator gives it, and can be unpacked."""
    own = OWN_HEADERS.get(kind)
    return content_type_of(headers) == kind and can_be_unpacked(headers) and (not own or own in headers)


def content_type_of(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def can_be_unpacked(headers: Mapping[str, str]) -> bool:
    return all(one.strip() in KNOWN_ENCODINGS for one in _encodings(headers).split(","))


def is_packed(headers: Mapping[str, str]) -> bool:
    return _encodings(headers) not in ("", "identity")


def _encodings(headers: Mapping[str, str]) -> str:
    return headers.get("content-encoding", "").strip().lower()
