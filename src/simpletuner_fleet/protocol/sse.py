"""Encodes and decodes Server-Sent Events, without sockets."""

from collections.abc import Iterator

import msgspec

from simpletuner_fleet.protocol.messages import StreamMessage

MAX_EVENT_BYTES = 16 * 1024 * 1024

_encoder = msgspec.json.Encoder()


def encode(message: StreamMessage, event_id: int) -> bytes:
    """Encodes an event whose name and JSON field `type` agree. JSON holds no raw newline, so one data line does."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (message.type.encode(), event_id, _encoder.encode(message))


def encode_raw(event: str, event_id: int, data: bytes) -> bytes:
    return b"event: %b\nid: %d\ndata: %b\n\n" % (event.encode(), event_id, data)


class ServerEvent(msgspec.Struct, frozen=True):
    name: str
    id: str
    data: bytes


class EventTooLarge(Exception):
    """The peer sent an event larger than any we know."""


class Decoder:
    """Takes byte chunks cut anywhere and yields whole events; skips comments and unknown fields."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._rest = bytearray()
        self._size = 0
        self._name = ""
        self._id = ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        for line in lines:
            if line.startswith(b":"):
                continue
            self._count(len(line) + 1)
            event = self._take(line.removesuffix(b"\r"))
            if event:
                yield event
        if self._size + len(self._rest) > self._max:
            raise EventTooLarge

    def _count(self, length: int) -> None:
        self._size += length
        if self._size > self._max:
            raise EventTooLarge

    def _take(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._end_of_event()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id":
            self._id = value.decode("utf-8", "replace")
        elif field == b"data":
            self._data.append(value)
        return None

    def _end_of_event(self) -> ServerEvent | None:
        event = ServerEvent(self._name, self._id, b"\n".join(self._data)) if self._data else None
        self._name, self._data, self._size = "", [], 0
        return event
