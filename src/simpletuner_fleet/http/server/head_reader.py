"""Gathers the head of a request, which the parser delivers in pieces."""

import httptools

MAX_HEAD_BYTES = 64 * 1024
FIELD_BYTES = 32
"""What each field costs beside its letters, as HTTP/2 counts it: thousands of empty ones are a large head, too."""

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

    __slots__ = ("_field_bytes", "_headers", "_repeated_values", "_url")

    def __init__(self) -> None:
        self._url = b""
        self._headers: dict[str, str] | None = None
        """The headers of the head that is being read; None outside of one."""
        self._repeated_values: dict[str, list[str]] = {}
        """All values of the headers that came more than once: joined at the end, they cost no more than their bytes."""
        self._field_bytes = 0

    @property
    def in_head(self) -> bool:
        return self._headers is not None

    @property
    def head_is_too_large(self) -> bool:
        return self._field_bytes > MAX_HEAD_BYTES

    def begin_head(self) -> None:
        self._url = b""
        self._headers = {}
        self._repeated_values = {}
        self._field_bytes = 0

    def take_head(self) -> tuple[str, bytes, dict[str, str]]:
        """Returns the path, the query and the headers of a complete head."""
        headers, self._headers = self._headers or {}, None
        for name, values in self._repeated_values.items():
            headers[name] = ", ".join(values)
        path, query = split_url(self._url)
        return path, query, headers

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._field_bytes += len(name) + len(value) + FIELD_BYTES
        if self.head_is_too_large:
            raise httptools.HttpParserError("the request's head is too large")
        headers = self._headers
        if headers is None:
            raise httptools.HttpParserError("trailers are not taken")
        known, text = NAMES.get(name) or name.lower().decode("latin-1"), value.decode("latin-1")
        if known in headers:
            self._repeated_values.setdefault(known, [headers[known]]).append(text)
        else:
            headers[known] = text


def split_url(url: bytes) -> tuple[str, bytes]:
    """Returns the path and the query; a whole URL, as it is sent to a proxy, is cut to them."""
    if not url.startswith(b"/") or b"#" in url:
        parsed = httptools.parse_url(url)
        return (parsed.path or b"/").decode("ascii"), parsed.query or b""
    path, _, query = url.partition(b"?")
    return path.decode("ascii"), query
