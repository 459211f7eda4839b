"""Writes many rows of one table in few statements, which the database runs without a round trip for each row."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

Values = tuple[Any, ...]
LARGEST_CHUNK = 64
LARGEST_AT_ONCE = 32
"""So many rows have a statement of their own number: each further statement of a commit costs the threads a change."""
EXPECTED = "expected"


class Table(Struct, frozen=True, kw_only=True, eq=False):
    """Describes how rows of one table are written. Values come in the order of the columns.

    Each is itself alone: statements are looked up by it, and to compare all its columns takes longer than that.

    An update finds its row by the first `key` columns and writes the others; its values leave out the `fixed`
    columns. Where `guard` names a column, one more value says what that column must hold: a row that somebody
    else has changed stays.
    """

    name: str
    columns: tuple[str, ...]
    key: int = 1
    fixed: frozenset[str] = frozenset()
    guard: str = ""

    def narrowed(self, written: frozenset[str]) -> "Table":
        """Returns the same table for updates that leave alone all but these columns."""
        return replace(self, fixed=frozenset(self.columns) - written)

    @property
    def update_columns(self) -> tuple[str, ...]:
        """Returns the names of the values of an update."""
        changing = tuple(name for name in self.columns if name not in self.fixed)
        return (*changing, EXPECTED) if self.guard else changing

    @property
    def keys(self) -> tuple[str, ...]:
        return self.columns[: self.key]

    @property
    def written(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns[self.key :] if name not in self.fixed)


class RowWrite(NamedTuple):
    """Holds rows of one table to insert or to update. All must be touched, unless a conflict is expected."""

    table: Table
    rows: Sequence[Values]
    update: bool = False
    on_conflict: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return self.table.update_columns if self.update else self.table.columns

    @property
    def exact(self) -> bool:
        return not self.on_conflict


def chunks(rows: Sequence[Values]) -> Iterator[Sequence[Values]]:
    """Yields few slices; the lengths of long ones are powers of two, so that few statements have to be prepared."""
    start, remaining = 0, len(rows)
    while remaining:
        size = min(LARGEST_CHUNK, 1 << (remaining.bit_length() - 1))
        if remaining <= LARGEST_AT_ONCE:
            size = remaining
        yield rows[start : start + size]
        start, remaining = start + size, remaining - size


def write_in_chunks(write: RowWrite, execute: Callable[[str, list[Any]], int]) -> int:
    """Writes the rows, and returns how many were touched."""
    return sum(
        execute(
            many_rows(write.table, write.update, write.on_conflict, len(some)), [*chain.from_iterable(some)]
        )
        for some in chunks(write.rows)
    )


@lru_cache(maxsize=512)
def many_rows(table: Table, update: bool, on_conflict: str, rows: int) -> str:
    """Returns one statement for this many rows, with `?` for each value."""
    columns = table.update_columns if update else table.columns
    values = ", ".join([f"({', '.join('?' * len(columns))})"] * rows)
    if not update:
        return f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES {values} {on_conflict}"
    sets = ", ".join(f"{name} = {_new(table, name)}" for name in table.written)
    same_key = " AND ".join(f"{table.name}.{name} = {_new(table, name)}" for name in table.keys)
    guard = f" AND {table.name}.{table.guard} = {_new(table, EXPECTED)}" if table.guard else ""
    return f"UPDATE {table.name} SET {sets} FROM (VALUES {values}) AS new WHERE {same_key}{guard}"


def _new(table: Table, name: str) -> str:
    return f"new.column{table.update_columns.index(name) + 1}"
