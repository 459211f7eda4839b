"""Decodes the bytes of a request into types, with a limit on every dimension."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import suppress
from functools import cache
from itertools import accumulate
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from simpletuner_fleet.core.errors import Invalid, Malformed, TooLarge, UnsupportedMediaType
from simpletuner_fleet.http.edge.exchange import CallerGone
from simpletuner_fleet.http.edge.problems import RequestTimeout
from simpletuner_fleet.http.edge.refused_fields import refused_field

MAX_DEPTH = 64
MAX_DISCARDED_BYTES = 8 * 1024 * 1024
DISCARD_TIMEOUT_S = 2.0
MAX_QUERY_BYTES = 8192
MAX_QUERY_FIELDS = 64
CACHE_BUSTER = "_"
JSON, FORM, RAW = "application/json", "application/x-www-form-urlencoded", "application/octet-stream"
FORM_IN_PARTS = "multipart/form-data"

NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
CHANGE_OF_DEPTH = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""As signed bytes: one level more, or one less."""
NUL_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")
EVERY_DIGIT_ZERO = bytes(ord("0") if byte in b"0123456789" else byte for byte in range(256))
LONG_DIGITS = b"0" * 19
# An unclosed string runs to the end, or many escaped quotes would cost quadratic time.
STRINGS_AND_NUMBERS = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"?|-?[0-9]++(\.[0-9]++)?([eE][+-]?[0-9]++)?', re.DOTALL
)
MAX_INTEGER = 2**63 - 1
OUT_OF_RANGE = f"Expected `int` <= {MAX_INTEGER}"
Receive = Callable[[], Awaitable[tuple[bytes, bool]]]
"""Returns the next piece of a body and whether more may follow; raises CallerGone."""


class Overflow(Exception):
    """More bytes came than are allowed."""

    def __init__(self, more_to_come: bool) -> None:
        super().__init__()
        self.more_to_come = more_to_come


async def read_body(receive: Receive, content_length: str | None, max_bytes: int, timeout_s: float) -> bytes:
    declared = int(content_length) if content_length and content_length.isdecimal() else 0
    try:
        async with asyncio.timeout(timeout_s):
            if declared <= max_bytes:
                return await _read_all(receive, max_bytes)
    except Overflow as overflow:
        if overflow.more_to_come:
            await discard(receive)
    except TimeoutError:
        raise RequestTimeout(f"The request's body did not arrive within {timeout_s:g} s.") from None
    else:
        if declared <= MAX_DISCARDED_BYTES:
            await discard(receive)
    raise TooLarge(f"The request is larger than {max_bytes} bytes.")


class Incoming:
    """Gives out a raw body in pieces, as it arrives: one can be processed while the rest is on its way."""

    def __init__(
        self, receive: Receive, content_length: str | None, max_bytes: int, timeout_s: float
    ) -> None:
        self._receive = receive
        self._max = max_bytes
        self._timeout_s = timeout_s
        if content_length and content_length.isdecimal() and int(content_length) > max_bytes:
            raise TooLarge(f"The request is larger than {max_bytes} bytes.")

    async def pieces(self, piece_bytes: int) -> AsyncIterator[bytes]:
        """Yields pieces of about this size; only the last is smaller. An empty body is one empty piece.

        Each has the whole time limit to itself, so a body may take as long as it is large. What has come when the time
        is up or the connection breaks is yielded before that is raised: it need not be sent again.
        """
        size, more = 0, True
        while more:
            parts: list[bytes] = []
            part_bytes = 0
            trouble: Exception | None = None
            try:
                async with asyncio.timeout(self._timeout_s):
                    while more and part_bytes < piece_bytes:
                        piece, more = await self._receive()
                        parts.append(piece)
                        part_bytes += len(piece)
            except CallerGone as error:
                trouble = error
            except TimeoutError:
                trouble = RequestTimeout(f"{piece_bytes} bytes did not arrive within {self._timeout_s:g} s.")
            size += part_bytes
            if size > self._max:
                raise TooLarge(f"The request is larger than {self._max} bytes.")
            if part_bytes or (size == 0 and not trouble):
                yield b"".join(parts)
            if trouble:
                raise trouble


async def discard(receive: Receive) -> None:
    """Reads the rest of a body, within limits: a caller that is still sending when we close never sees why."""
    with suppress(TimeoutError, Overflow):
        async with asyncio.timeout(DISCARD_TIMEOUT_S):
            await _read_all(receive, MAX_DISCARDED_BYTES)


async def _read_all(receive: Receive, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        part, more = await receive()
        size += len(part)
        if size > max_bytes:
            raise Overflow(more_to_come=more)
        parts.append(part)
        if not more:
            return parts[0] if len(parts) == 1 else b"".join(parts)


def check_content_type(header: str | None, wanted: str, form_is_json: bool) -> None:
    """Raises UnsupportedMediaType for another content type than the wanted one.

    `form_is_json` is for `curl -d '{…}'`: it announces a form unless told otherwise, and the documents print it so.
    Only a caller that proved itself by a header, or the trusted local machine, and is not a browser, is read so
    leniently: a form on another site's page can send this content type, but neither send those headers nor hide that
    it is a browser.
    """
    media_type, _, parameters = (header or "").lower().partition(";")
    media_type = media_type.strip()
    if media_type == FORM and form_is_json and wanted == JSON:
        return
    if media_type != wanted:
        what = f"'{media_type}' is" if media_type else "A body without a content type is"
        raise UnsupportedMediaType(
            f"{what} not accepted here.", next_step=f"Send it with 'Content-Type: {wanted}'."
        )
    charset = parameters.partition("charset=")[2].strip(' "')
    if wanted == JSON and charset not in ("", "utf-8", "utf8"):
        raise UnsupportedMediaType("JSON must be UTF-8.")


def decode_json(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        refuse_deep(body)
    if LONG_DIGITS in body.translate(EVERY_DIGIT_ZERO):
        refuse_huge_integers(body)
    if b"\\u0000" in body and NUL_ESCAPE.search(body):
        raise Malformed("The request contains a NUL character.")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise refused_field(error, decoder.type) from None
    except msgspec.DecodeError as error:
        raise Malformed(f"The request is not JSON: {error}.") from None
    except UnicodeDecodeError as error:
        raise Malformed(f"The request is not UTF-8: {error.reason}.") from None


def as_type(said: dict[str, Any], kind: Any) -> Any:
    """Converts plain JSON to the type that a row takes."""
    try:
        return said if kind is dict else msgspec.convert(said, kind)
    except msgspec.ValidationError as error:
        raise refused_field(error, kind) from None


def refuse_deep(body: bytes) -> None:
    """Raises Malformed for what is nested too deeply.

    A body may have millions of brackets and strings: no step of Python's is made for each of them.
    """
    # Without its escapes, every other piece between two quotes lies outside of strings.
    outside = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    changes = b"".join(outside).translate(CHANGE_OF_DEPTH, NO_BRACKETS)
    if max(accumulate(memoryview(changes).cast("b")), default=0) > MAX_DEPTH:
        raise Malformed(f"The JSON is nested deeper than {MAX_DEPTH} levels.")


def refuse_huge_integers(body: bytes) -> None:
    """Raises Invalid for integers that no database column holds."""
    for token in STRINGS_AND_NUMBERS.finditer(body):
        text = token[0]
        if text.startswith(b'"') or token[1] or token[2]:
            continue
        if len(text) > 20 or abs(int(text)) > MAX_INTEGER:
            raise Invalid(f"A number at byte {token.start()} is out of range", path="$")


@cache
def query_decoder(kind: Any) -> Callable[[bytes], Any]:
    """Returns a decoder for this type of query. Fields that are lists take a repeated parameter.

    An unknown parameter is left out: `unknown_parameters` names it.
    """
    lists = frozenset(field.encode_name for field in msgspec.structs.fields(kind) if _is_list(field.type))

    def decode(query_string: bytes) -> Any:
        fields: dict[str, Any] = {}
        for name, value in _pairs(query_string):
            if name in lists:
                fields.setdefault(name, []).append(value)
            else:
                fields[name] = value
        try:
            decoded = msgspec.convert(fields, kind, strict=False)
        except msgspec.ValidationError as error:
            raise refused_field(error, kind) from None
        _refuse_endless_numbers(decoded)
        return decoded

    return decode


@cache
def parameter_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))


def unknown_parameters(query_string: bytes, names: Collection[str]) -> list[str]:
    """Returns the parameters beyond these names. A name that begins with `_` only bypasses a cache, and is allowed."""
    said = dict.fromkeys(name for name, _ in _pairs(query_string))
    return [name for name in said if name not in names and not name.startswith(CACHE_BUSTER)]


def _pairs(query_string: bytes) -> list[tuple[str, str]]:
    if len(query_string) > MAX_QUERY_BYTES:
        raise TooLarge("The query string is too long.")
    if not query_string:
        return []
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_QUERY_FIELDS,
        )
    except ValueError as error:
        raise Malformed(f"The query string is not readable: {error}.") from None
    if any("\0" in value for _, value in pairs):
        raise Malformed("The query string contains a NUL character.")
    return pairs


def _is_list(kind: Any) -> bool:
    info = msgspec.inspect.type_info(kind)
    options = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    return any(isinstance(one, msgspec.inspect.ListType | msgspec.inspect.VarTupleType) for one in options)


def _refuse_endless_numbers(decoded: Any) -> None:
    for name in decoded.__struct_fields__:
        value = getattr(decoded, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise Invalid("Expected a finite number", path=f"$.{name}")
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise Invalid(OUT_OF_RANGE, path=f"$.{name}")
