"""Prepares answers to what never became a request, in the format of all other problems.

Their codes are none that workers and commands act on: whatever mangled a request on its way says nothing about it.
"""

import msgspec

from simpletuner_fleet.http.edge.problems import ProblemDocument
from simpletuner_fleet.protocol.problems import TYPE_PREFIX


def refusal(
    status: int, reason: str, code: str, *, title: str, detail: str, next: str, more: str = ""
) -> bytes:
    """Returns a whole answer, head and body, except for the date line.

    `more` are whole lines of the head.
    """
    document = ProblemDocument(
        type=f"{TYPE_PREFIX}{code}", title=title, status=status, detail=detail, code=code, next=next
    )
    body = msgspec.json.encode(document)
    head = (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/problem+json\r\n{more or CLOSES}"
        f"cache-control: no-store\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


CLOSES = "connection: close\r\n"
UNREADABLE = refusal(
    400,
    "Bad Request",
    "unreadable_request",
    title="This is no HTTP request.",
    detail="What came over this connection cannot be read as HTTP/1.1. Nothing of it was carried out.",
    next="Look at what stands between the client and the server: a proxy, or TLS spoken to a plain port.",
)
HEAD_TOO_LARGE = refusal(
    400,
    "Bad Request",
    "head_too_large",
    title="The request's head is too large.",
    detail="Its first line and its headers have more bytes than any request needs. Nothing of it was carried out.",
    next="Send fewer or shorter headers: cookies of other programs at the same host are a usual cause.",
)
PLAIN_REFUSED = refusal(
    426,
    "Upgrade Required",
    "plain_http_refused",
    title="Other machines are served over TLS only.",
    detail="This request came over the network without TLS, where anybody can read its token. It was not looked at.",
    next="Use https:// with the same host and port, and '--ssl-fingerprint' as the server printed it. Whoever wants "
    "plain HTTP on the network starts the server with '--plain-http'. Renew a token that was sent.",
    more="upgrade: TLS/1.2\r\nconnection: upgrade, close\r\n",
)
