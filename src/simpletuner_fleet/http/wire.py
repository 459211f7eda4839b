"""What the edge reads off the wire and puts on it, as ASGI has it."""

from starlette.types import Receive, Scope, Send

from simpletuner_fleet.http.sse_response import RawHeaders

STRICT_CSP = b"default-src 'none'; frame-ancestors 'none'"


def security_headers(tls: bool) -> RawHeaders:
    headers = [
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"content-security-policy", STRICT_CSP),
    ]
    if tls:
        headers.append((b"strict-transport-security", b"max-age=31536000"))
    return headers


def read_headers(raw: RawHeaders) -> dict[str, str]:
    """A doubled header is joined by a comma, so that a doubled Host or token fits nothing."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in raw:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def raw_path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1")


async def send_whole(send: Send, scope: Scope, status: int, headers: RawHeaders, body: bytes) -> None:
    if status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def answer_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
