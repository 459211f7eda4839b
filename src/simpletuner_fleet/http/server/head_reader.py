"""Gathers the head of a request, which the parser delivers in pieces."""

import httptools

MAX_HEAD_BYTES = 64 * 1024

NAMES = {
    spelling: name
    for name in [
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "host",
        "user-agent",
        "x-upload-token",
        "x-worker-token",
    ]
    for spelling in (name.encode(), name.title().encode())
}
"""Header names as our own agents send them, made ready for use."""


class HeadReader:
    """Gathers the heads of requests, one after another.

    A trailer, which comes after a head and looks like more of it, is refused: it comes after every check was made on
    the head, and a proxy in front may have let pass in it what it strips from heads.
    """

    __slots__ = ("_field_bytes", "_headers", "_url")

    def __init__(self) -> None:
        self._url = b""
        self._headers: dict[str, str] | None = None
        """The headers of the head that is being read; None outside of one."""
        self._field_bytes = 0

    @property
    def in_head(self) -> bool:
        return self._headers is not None

    def begin_head(self) -> None:
        self._url = b""
        self._headers = {}
        self._field_bytes = 0

    def take_head(self) -> tuple[str, bytes, dict[str, str]]:
        """Returns the path, the query and the headers of a complete head."""
        headers, self._headers = self._headers or {}, None
        path, query = split_url(self._url)
        return path, query, headers

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > MAX_HEAD_BYTES:
            raise httptools.HttpParserError("the request's head is too large")
        headers = self._headers
        if headers is None:
            raise httptools.HttpParserError("trailers are not taken")
        known, text = NAMES.get(name) or name.lower().decode("latin-1"), value.decode("latin-1")
        headers[known] = f"{headers[known]}, {text}" if known in headers else text


def split_url(url: bytes) -> tuple[str, bytes]:
    """Returns the path and the query; a whole URL, as it is sent to a proxy, is cut to them."""
    if not url.startswith(b"/") or b"#" in url:
        parsed = httptools.parse_url(url)
        return (parsed.path or b"/").decode("ascii"), parsed.query or b""
    path, _, query = url.partition(b"?")
    return path.decode("ascii"), query
