"""Converts the fields of a struct to the columns of a row and back."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from simpletuner_fleet.core.errors import UnreadableRow

log = logging.getLogger(__name__)

UNREADABLE = (ValueError, TypeError, KeyError, RecursionError)
"""What a field that is not what it should be raises; msgspec's errors are ValueErrors."""
S = TypeVar("S", bound=Struct)
EMPTY_LIST = "[]"
NUMBERS: Mapping[Any, frozenset[type]] = {
    int: frozenset({int}),
    float: frozenset({float, int}),
    type(None): frozenset({type(None)}),
}
MOST_KINDS_KNOWN = 4096

_encode = msgspec.json.Encoder(order="deterministic").encode
_strings: Callable[[str], tuple[str, ...]] = msgspec.json.Decoder(tuple[str, ...]).decode


class Codec(NamedTuple):
    to_column: Callable[[Any], Any]
    """Never called with None, which is stored as NULL, nor with a value that has a word."""
    to_field: Callable[[Any], Any]
    words: Mapping[Any, Any] = {}
    """What some values are stored as: to look that up costs less than a call. With words, all values are hashable."""


def optional(codec: Codec) -> Codec:
    """Returns a codec that reads NULL as None."""
    return codec._replace(to_field=lambda value: None if value is None else codec.to_field(value))


def enum_codec(kind: type[StrEnum]) -> Codec:
    members = {member.value: member for member in kind}
    words = {member: member.value for member in kind}
    return Codec(words.__getitem__, members.__getitem__, words)


def optional_enum(kind: type[StrEnum]) -> Codec:
    members: dict[str | None, StrEnum | None] = {None: None, **{member.value: member for member in kind}}
    return enum_codec(kind)._replace(to_field=members.__getitem__)


def json_codec(kind: Any, clean: Callable[[Any], Any] | None = None) -> Codec:
    decode = msgspec.json.Decoder(kind).decode
    return Codec(json_text if clean is None else lambda value: json_text(clean(value)), decode)


def json_text(value: Any) -> str:
    return _encode(value).decode()


def json_list(values: tuple[Any, ...]) -> str:
    return _encode(values).decode() if values else EMPTY_LIST


def strings(text: str) -> tuple[str, ...]:
    return () if text == EMPTY_LIST else _strings(text)


NO_ITEMS: Mapping[Any, Any] = {(): EMPTY_LIST}
TRUTH = Codec(int, bool, {False: 0, True: 1})
JSON_LIST = Codec(json_list, strings, NO_ITEMS)


class RowCodec(Generic[S]):
    """Turns a struct into the columns of a row, and back.

    Every field of the struct is the column of its name; those without a codec are stored as they are.

    `fixed` are the columns that never change once a row is there. `updates` are the columns that are written together
    when no other has changed, from the few that change all the time to the many that seldom do: an update that leaves
    a column alone also leaves alone the indexes over it. The last update writes all that is not fixed.
    """

    def __init__(
        self,
        struct: type[S],
        codecs: Mapping[str, Codec],
        fixed: frozenset[str] = frozenset(),
        updates: Sequence[frozenset[str]] = (),
    ) -> None:
        self.columns: tuple[str, ...] = struct.__struct_fields__
        self._struct: Callable[..., S] = struct
        self._kind = struct
        self.set_aside: dict[str, str] = {}
        """Why, by id, rows could not be read since the start."""
        self._all = Selection(self.columns, self.columns, codecs)
        self.updates = (*updates, frozenset(self.columns) - fixed)
        self._narrow_updates = [
            (
                [at for at, name in enumerate(self.columns) if name in update - narrower],
                Selection([name for name in self.columns if name in update], self.columns, codecs),
            )
            for narrower, update in pairwise((frozenset(), *updates))
        ]
        """Each with the places of the columns that it writes beside those of the one before."""
        self._widest_update = Selection(
            [name for name in self.columns if name not in fixed], self.columns, codecs
        )
        self._to_field = [
            (place, codecs[name].to_field) for place, name in enumerate(self.columns) if name in codecs
        ]
        hints = get_type_hints(struct)
        self._numbers = {
            name: kinds for name in self.columns if (kinds := _number_kinds(name, hints, codecs))
        }
        self._numbers_in: Callable[[tuple[Any, ...]], tuple[Any, ...]] = itemgetter(
            *map(self.columns.index, self._numbers)
        )
        self._fitting: set[tuple[type, ...]] = set()
        """Of what kinds the numbers were in rows that could be read: nearly all rows are like one of a few."""

    def values(self, row: S) -> tuple[Any, ...]:
        """Returns the row's values in the order of the columns."""
        return self._all.values(astuple(row))

    def update(self, stored: S, row: S) -> tuple[int, tuple[Any, ...]]:
        """Returns the place of the first update that writes every column which has changed, and the values it writes."""
        fields, known = list(astuple(row)), list(astuple(stored))
        for place, (added, update) in enumerate(self._narrow_updates):
            for at in added:
                known[at] = fields[at]
            if known == fields:
                return place, update.values(fields)
        return len(self._narrow_updates), self._widest_update.values(fields)

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
                readable.append(self._checked(values))
            except UNREADABLE as error:
                self._set_aside(values, error)
        return readable

    def unreadable(self, all_values: Iterable[tuple[Any, ...]]) -> dict[str, str]:
        """Returns why rows cannot be read, by their ids. It notes nothing: they may be another database's."""
        why: dict[str, str] = {}
        for values in all_values:
            try:
                self._checked(values)
            except UNREADABLE as error:
                why[str(values[0])] = described(error)
        return why

    def _checked(self, values: tuple[Any, ...]) -> S:
        return msgspec.convert(msgspec.to_builtins(self._row(values)), self._kind)

    def _set_aside(self, values: tuple[Any, ...], error: Exception) -> UnreadableRow:
        row_id = str(values[0])
        if row_id not in self.set_aside:
            log.error(
                "the row %s of %s cannot be read and is set aside: %s", row_id, self._kind.__name__, error
            )
        self.set_aside[row_id] = described(error)
        return UnreadableRow(f"The {self._kind.__name__.lower()} {row_id} cannot be read.")

    def _row(self, values: tuple[Any, ...]) -> S:
        """Raises one of `UNREADABLE`; SQLite keeps a text in a column of numbers, where somebody has put one."""
        kinds = tuple(map(type, self._numbers_in(values)))
        if kinds not in self._fitting:
            self._check_numbers(kinds)
        fields = list(values)
        for place, to_field in self._to_field:
            fields[place] = to_field(fields[place])
        return self._struct(**dict(zip(self.columns, fields, strict=True)))

    def _check_numbers(self, kinds: tuple[type, ...]) -> None:
        for (name, accepted), kind in zip(self._numbers.items(), kinds, strict=True):
            if kind not in accepted:
                raise TypeError(f"{name} is stored as {kind.__name__}")
        if len(self._fitting) < MOST_KINDS_KNOWN:
            self._fitting.add(kinds)


def _number_kinds(name: str, hints: Mapping[str, Any], codecs: Mapping[str, Codec]) -> frozenset[type]:
    """Returns what a column of numbers may hold; nothing for any other column."""
    options = get_args(hints[name]) or (hints[name],)
    if name in codecs or not all(one in NUMBERS for one in options):
        return frozenset()
    return frozenset().union(*(NUMBERS[one] for one in options))


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class Selection:
    """Takes the values of several columns from the fields of a struct, in their order."""

    def __init__(self, names: Sequence[str], columns: Sequence[str], codecs: Mapping[str, Codec]) -> None:
        self._taken: Callable[[Sequence[Any]], tuple[Any, ...]] = itemgetter(*map(columns.index, names))
        coded = [(place, codecs[name]) for place, name in enumerate(names) if name in codecs]
        self._by_word = [(place, codec.words, codec.to_column) for place, codec in coded if codec.words]
        self._by_call = [(place, codec.to_column) for place, codec in coded if not codec.words]

    def values(self, fields: Sequence[Any]) -> tuple[Any, ...]:
        values = list(self._taken(fields))
        for place, words, to_column in self._by_word:
            value = values[place]
            if value in words:
                values[place] = words[value]
            elif value is not None:
                values[place] = to_column(value)
        for place, to_column in self._by_call:
            if values[place] is not None:
                values[place] = to_column(values[place])
        return tuple(values)
