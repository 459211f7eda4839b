"""Holds one connection to a directory, for one log-in.

It blocks, so it runs in a thread; a deadline ends every wait.
"""

import re
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from typing import Self

from msgspec import Struct

from simpletuner_fleet.orchestrator.sign_in.ldap.ber import (
    BOOLEAN,
    ENUMERATED,
    MAX_MESSAGE_BYTES,
    SEQUENCE,
    SET,
    BerReader,
    GarbledLdap,
    encoded,
    head_at,
    number,
    octets,
)

BIND, BIND_ANSWER, UNBIND = 0x60, 0x61, 0x42
SEARCH, ENTRY, SEARCH_DONE, REFERENCE = 0x63, 0x64, 0x65, 0x73
EXTENDED, EXTENDED_ANSWER = 0x77, 0x78
START_TLS = "1.3.6.1.4.1.1466.20037"
SUCCESS, SIZE_LIMIT_EXCEEDED, INVALID_CREDENTIALS = 0, 4, 49
THE_ENTRY, WHOLE_SUBTREE, NEVER = 0, 2, 0
IS_THERE = octets("objectClass", 0x87)
RANGE = re.compile(r";range=[0-9]{1,9}-([0-9]{1,9}|\*)", re.ASCII)
VERSION = 3
MAX_VALUES = 5_000
MAX_ENTRIES = 2_000


class DirectoryRefused(Exception):
    """The directory's answer was not success."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class DirectoryEntry(Struct, frozen=True):
    dn: str
    attributes: dict[str, list[bytes]]
    """Names are in lower case."""

    def first(self, attribute: str) -> bytes:
        return next(iter(self.attributes.get(attribute.lower(), [])), b"")

    def piece(self, attribute: str) -> tuple[list[bytes], bool]:
        """Returns the values of an attribute that are here, and whether there are more to ask for.

        Active Directory hands out a long list in pieces, each under a name with its range: `memberOf;range=0-1499`.
        """
        for name, values in self.attributes.items():
            match = RANGE.fullmatch(name.removeprefix(attribute.lower()))
            if match and values:
                return values, match[1] != "*"
        return self.attributes.get(attribute.lower(), []), False


class LdapConnection:
    def __init__(self, host: str, port: int, deadline_s: float) -> None:
        self._until = time.monotonic() + deadline_s
        self._host = host
        self._socket: socket.socket = socket.create_connection((host, port), timeout=deadline_s)
        self._buffer = b""
        self._last_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def secure(self, context: ssl.SSLContext) -> None:
        """Uses TLS from here on. Plain bytes that came before are refused, since nobody knows who sent them."""
        if self._buffer:
            raise GarbledLdap
        self._socket.settimeout(self._left())
        self._socket = context.wrap_socket(self._socket, server_hostname=self._host)

    def start_tls(self, context: ssl.SSLContext) -> None:
        tag, content = self._ask(encoded(EXTENDED, octets(START_TLS, 0x80)))
        _check(tag, content, EXTENDED_ANSWER)
        self.secure(context)

    def bind(self, dn: str, password: str) -> None:
        """Binds with the password. Raises DirectoryRefused, also for an empty dn or password.

        With those it would be an anonymous bind, which the directory accepts.
        """
        if not dn or not password:
            raise DirectoryRefused(INVALID_CREDENTIALS)
        tag, content = self._ask(encoded(BIND, number(VERSION), octets(dn), octets(password, 0x80)))
        _check(tag, content, BIND_ANSWER)

    def all_values(self, entry: DirectoryEntry, attribute: str, limit: int) -> list[bytes]:
        """Returns all values of an attribute of this entry, asking for the rest where they came in pieces."""
        values, more = entry.piece(attribute)
        while more and len(values) < limit:
            rest = [f"{attribute};range={len(values)}-*"]
            [again] = self.search(entry.dn, IS_THERE, rest, 1, THE_ENTRY) or [entry]
            piece, more = again.piece(attribute)
            if again is entry or not piece:
                raise GarbledLdap
            values = [*values, *piece]
        return values[:limit]

    def search(
        self, base: str, wanted: bytes, attributes: Sequence[str], limit: int, scope: int = WHOLE_SUBTREE
    ) -> list[DirectoryEntry]:
        """Returns at most `limit` entries. References to other directories are not followed."""
        asked = encoded(SEQUENCE, *(octets(name) for name in attributes))
        seconds = max(1, int(self._left()))
        request = encoded(
            SEARCH,
            octets(base),
            number(scope, ENUMERATED),
            number(NEVER, ENUMERATED),
            number(limit),
            number(seconds),
            encoded(BOOLEAN, b"\0"),
            wanted,
            asked,
        )
        self._send(request)
        entries: list[DirectoryEntry] = []
        for tag, content in self._answers():
            if tag == ENTRY and len(entries) < limit:
                entries.append(_entry(content))
            elif tag not in (ENTRY, REFERENCE):
                _check(tag, content, SEARCH_DONE, also=(SIZE_LIMIT_EXCEEDED,))
                return entries
        raise GarbledLdap

    def _ask(self, operation: bytes) -> tuple[int, bytes]:
        self._send(operation)
        return next(self._answers())

    def _send(self, operation: bytes) -> None:
        self._last_id += 1
        self._socket.settimeout(self._left())
        self._socket.sendall(encoded(SEQUENCE, number(self._last_id), operation))

    def _answers(self) -> Iterator[tuple[int, bytes]]:
        """Yields the answers to the last request, up to a limit."""
        for _ in range(MAX_ENTRIES + 1):
            reader = BerReader(self._message())
            if reader.number() != self._last_id:
                raise GarbledLdap
            yield reader.element()

    def _message(self) -> bytes:
        while True:
            message = self._taken()
            if message is not None:
                return message
            if len(self._buffer) > MAX_MESSAGE_BYTES:
                raise GarbledLdap
            self._socket.settimeout(self._left())
            piece = self._socket.recv(65_536)
            if not piece:
                raise GarbledLdap
            self._buffer += piece

    def _taken(self) -> bytes | None:
        """Takes the first message from the buffer; returns None while it is not complete."""
        try:
            begins, size = head_at(self._buffer, 0)
        except IndexError:
            return None
        if self._buffer[0] != SEQUENCE:
            raise GarbledLdap
        if len(self._buffer) < begins + size:
            return None
        content, self._buffer = self._buffer[begins : begins + size], self._buffer[begins + size :]
        return content

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _check(tag: int, content: bytes, wanted: int, also: tuple[int, ...] = ()) -> None:
    if tag != wanted:
        raise GarbledLdap
    code = BerReader(content).number(ENUMERATED)
    if code != SUCCESS and code not in also:
        raise DirectoryRefused(code)


def _entry(content: bytes) -> DirectoryEntry:
    reader = BerReader(content)
    dn = _text(reader.content(0x04))
    listed, attributes = BerReader(reader.content(SEQUENCE)), {}
    while listed.more:
        one = BerReader(listed.content(SEQUENCE))
        name, values = _text(one.content(0x04)).lower(), BerReader(one.content(SET))
        collected: list[bytes] = []
        while values.more and len(collected) < MAX_VALUES:
            collected.append(values.content(0x04))
        attributes[name] = collected
    return DirectoryEntry(dn, attributes)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise GarbledLdap from None
