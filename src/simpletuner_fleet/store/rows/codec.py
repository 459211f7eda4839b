"""Converts the fields of a struct to the columns of a row and back."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from simpletuner_fleet.core.errors import UnreadableRow

log = logging.getLogger(__name__)

UNREADABLE = (ValueError, TypeError, KeyError, RecursionError)
"""What a field that is not what it should be raises; msgspec's errors are ValueErrors."""
S = TypeVar("S", bound=Struct)
EMPTY_LIST = "[]"

_encode = msgspec.json.Encoder(order="deterministic").encode
_strings: Callable[[str], tuple[str, ...]] = msgspec.json.Decoder(tuple[str, ...]).decode


class Codec(NamedTuple):
    to_column: Callable[[Any], Any]
    to_field: Callable[[Any], Any]


def optional(codec: Codec) -> Codec:
    """Returns a codec that stores None as NULL."""
    return Codec(
        lambda value: None if value is None else codec.to_column(value),
        lambda value: None if value is None else codec.to_field(value),
    )


def enum_codec(kind: type[StrEnum]) -> Codec:
    """Returns a codec that converts by look-up, which costs less than asking a member for its value."""
    members = {member.value: member for member in kind}
    values = {member: member.value for member in kind}
    return Codec(values.__getitem__, members.__getitem__)


def optional_enum(kind: type[StrEnum]) -> Codec:
    members: dict[str | None, StrEnum | None] = {None: None, **{member.value: member for member in kind}}
    values: dict[StrEnum | None, str | None] = {None: None, **{member: member.value for member in kind}}
    return Codec(values.__getitem__, members.__getitem__)


def json_codec(kind: Any, clean: Callable[[Any], Any] = lambda value: value) -> Codec:
    decode = msgspec.json.Decoder(kind).decode
    return Codec(lambda value: _encode(clean(value)).decode(), decode)


def json_list(values: tuple[Any, ...]) -> str:
    return _encode(values).decode() if values else EMPTY_LIST


def strings(text: str) -> tuple[str, ...]:
    return () if text == EMPTY_LIST else _strings(text)


TRUTH = Codec(int, bool)
JSON_LIST = Codec(json_list, strings)


class RowCodec(Generic[S]):
    """Turns a struct into the columns of a row, and back.

    Every field of the struct is the column of its name; those without a codec are stored as they are.

    `fixed` are the columns that never change once a row is there, `often` those that most changes are about: an update
    that leaves the others alone also leaves alone the indexes over them.
    """

    def __init__(
        self,
        struct: type[S],
        codecs: Mapping[str, Codec],
        fixed: frozenset[str] = frozenset(),
        often: frozenset[str] = frozenset(),
    ) -> None:
        self.columns: tuple[str, ...] = struct.__struct_fields__
        self._struct: Callable[..., S] = struct
        self._kind = struct
        self.set_aside: dict[str, str] = {}
        """Why, by id, rows could not be read since the start."""
        changing = [name for name in self.columns if name not in fixed]
        self._all = Selection[S](self.columns, codecs)
        self._changing = Selection[S](changing, codecs)
        self._often = Selection[S]([name for name in changing if name in often], codecs)
        self._seldom: Callable[[S], Any] = attrgetter(*(name for name in changing if name not in often))
        self._to_field = [
            (place, codecs[name].to_field) for place, name in enumerate(self.columns) if name in codecs
        ]

    def values(self, row: S) -> tuple[Any, ...]:
        """Returns the row's values in the order of the columns."""
        return self._all.values(row)

    def changing_values(self, row: S) -> tuple[Any, ...]:
        """Returns the values of all columns but the fixed ones."""
        return self._changing.values(row)

    def often_values(self, row: S) -> tuple[Any, ...]:
        """Returns the values of the columns that change often."""
        return self._often.values(row)

    def changed_as_often(self, stored: S, row: S) -> bool:
        """Tells whether only columns that change often have changed."""
        return bool(self._seldom(stored) == self._seldom(row))

    def row(self, values: tuple[Any, ...]) -> S:
        """Returns the struct of a row that was read in the order of the columns; raises UnreadableRow."""
        try:
            return self._row(values)
        except UNREADABLE as error:
            raise self._set_aside(values, error) from error

    def rows(self, all_values: Iterable[tuple[Any, ...]]) -> list[S]:
        """Returns the rows that can be read: one that cannot must not hide the others."""
        readable = []
        for values in all_values:
            try:
                readable.append(self._row(values))
            except UNREADABLE as error:
                self._set_aside(values, error)
        return readable

    def checked_rows(self, all_values: Iterable[tuple[Any, ...]]) -> list[S]:
        """Returns the same with every field checked, for rows that are kept in memory and decided on."""
        readable = []
        for values in all_values:
            try:
                readable.append(msgspec.convert(msgspec.to_builtins(self._row(values)), self._kind))
            except UNREADABLE as error:
                self._set_aside(values, error)
        return readable

    def _set_aside(self, values: tuple[Any, ...], error: Exception) -> UnreadableRow:
        row_id = str(values[0])
        if row_id not in self.set_aside:
            log.error(
                "the row %s of %s cannot be read and is set aside: %s", row_id, self._kind.__name__, error
            )
        self.set_aside[row_id] = f"{type(error).__name__}: {error}"
        return UnreadableRow(f"The {self._kind.__name__.lower()} {row_id} cannot be read.")

    def _row(self, values: tuple[Any, ...]) -> S:
        fields = list(values)
        for place, to_field in self._to_field:
            fields[place] = to_field(fields[place])
        return self._struct(**dict(zip(self.columns, fields, strict=True)))


class Selection(Generic[S]):
    """Takes the values of some columns from a struct, in their order."""

    def __init__(self, names: Sequence[str], codecs: Mapping[str, Codec]) -> None:
        self._fields: Callable[[S], tuple[Any, ...]] = attrgetter(*names) if len(names) > 1 else astuple
        self._to_column = [
            (place, codecs[name].to_column) for place, name in enumerate(names) if name in codecs
        ]

    def values(self, row: S) -> tuple[Any, ...]:
        values = list(self._fields(row))
        for place, to_column in self._to_column:
            values[place] = to_column(values[place])
        return tuple(values)
