"""Recognises headers that a caller repeats on the same connection, so that they need not be parsed again."""

import re
from typing import NamedTuple

from simpletuner_fleet.http.edge.exchange import HeadMemory

END_OF_LINE = b"\r\n"
END_OF_HEAD = b"\r\n\r\n"
LENGTH = "content-length"
LAST_LINE = b"\r\ncontent-length: "
MAX_LENGTH_DIGITS = 9
LINE = re.compile(rb"(GET|POST|PUT|DELETE) (/[A-Za-z0-9_./~%:,-]*)(?:\?([A-Za-z0-9_./~%:,&=+-]*))? HTTP/1\.1")
"""The request lines of our own agents. Whatever looks otherwise is left to the parser."""
METHODS = {name.encode(): name for name in ("GET", "POST", "PUT", "DELETE")}
MEANINGFUL = frozenset({"connection", "expect", "transfer-encoding", "upgrade"})
"""Headers that change how a request is read or what becomes of its connection: only the parser deals with them."""


ReadRequest = tuple[str, str, bytes, dict[str, str], bytes]
"""Method, path, query, headers and body."""


class RepeatedHead(NamedTuple):
    """Keeps the headers of a request that the parser has read, for requests that repeat them.

    `lines` holds all of them, byte for byte, up to the number that says how long the body is. Where the next request
    has the very same bytes there, its headers mean the same.
    """

    lines: bytes
    size: int
    """The length of `lines`."""
    headers: dict[str, str]
    memory: HeadMemory

    @classmethod
    def of(cls, request: bytes, headers: dict[str, str]) -> "RepeatedHead | None":
        """Returns the repeatable headers of a whole request that the parser has read; None where it has none."""
        length = headers.get(LENGTH, "")
        begin, end = request.find(END_OF_LINE), request.find(END_OF_HEAD)
        lines = request[begin : end - len(length)]
        if not length.isdecimal() or not MEANINGFUL.isdisjoint(headers):
            return None
        if end + len(END_OF_HEAD) + int(length) != len(request):
            return None
        if not lines.lower().endswith(LAST_LINE) or request[begin:end] != lines + length.encode("ascii"):
            return None
        kept = {name: value for name, value in headers.items() if name != LENGTH}
        return cls(lines, len(lines), kept, HeadMemory())

    def read(self, data: bytes) -> ReadRequest | None:
        """Returns the request if it is complete, nothing follows it, and its headers are the same; otherwise None."""
        end_of_line = data.find(END_OF_LINE)
        if not data.startswith(self.lines, end_of_line):
            return None
        begin = end_of_line + self.size
        end = data.find(END_OF_HEAD, begin, begin + MAX_LENGTH_DIGITS + 4)
        digits, body_begin = data[begin:end], end + 4
        if end < 0 or not digits.isdigit() or body_begin + int(digits) != len(data):
            return None
        line = LINE.fullmatch(data, 0, end_of_line)
        if line is None:
            return None
        method, path, query = line.groups(b"")
        headers = self.headers.copy()
        headers[LENGTH] = digits.decode("ascii")
        return METHODS[method], path.decode("ascii"), query, headers, data[body_begin:]
