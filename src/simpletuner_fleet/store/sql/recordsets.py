"""Writes rows to PostgreSQL, all of a table in one statement with one parameter.

The driver spends more time on sending a row's values one by one than the database on storing them. So they go as one
JSON text, which PostgreSQL turns into rows by the types of the table's own columns.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from simpletuner_fleet.store.rows.batches import EXPECTED, RowWrite, Table

Types = Mapping[str, str]
"""A table's columns, and PostgreSQL's names for their types."""

TYPES_OF = b"""
    SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""
BYTES = "bytea"
_encode = msgspec.json.Encoder().encode


def fits(table: Table, types: Types) -> bool:
    """Tells whether every column has a counterpart in JSON: bytes have none."""
    return all(types[name] != BYTES for name in table.columns)


def statement(write: RowWrite, types: Types) -> tuple[str, list[Any]]:
    """Returns the statement that inserts or updates all rows, and its parameters.

    An update divides by zero where a row is not there as it has to be, so that nothing that was sent with it is kept.
    """
    if not fits(write.table, types):
        assert not write.update, "rows that hold bytes are inserted and never changed"
        return _insert(write, f"unnest({_arrays(write.table, types)})"), [
            *map(list, zip(*write.rows, strict=True))
        ]
    rows = f"json_to_recordset(%s::json) AS new({', '.join(_typed(write, types))})"
    if write.update:
        return (
            f"WITH found AS ({_update(write.table, rows)} RETURNING 1) SELECT 1 / (count(*) = %s)::int FROM found",
            [
                _json(write),
                len(write.rows),
            ],
        )
    return _insert(write, rows), [_json(write)]


def _insert(write: RowWrite, rows: str) -> str:
    names = ", ".join(write.table.columns)
    return f"INSERT INTO {write.table.name} ({names}) SELECT * FROM {rows} {write.on_conflict}"


def _update(table: Table, rows: str) -> str:
    sets = ", ".join(f"{name} = new.{name}" for name in table.written)
    same_key = " AND ".join(f"{table.name}.{name} = new.{name}" for name in table.keys)
    guard = f" AND {table.name}.{table.guard} = new.{EXPECTED}" if table.guard else ""
    return f"UPDATE {table.name} SET {sets} FROM {rows} WHERE {same_key}{guard}"


def _json(write: RowWrite) -> str:
    names = write.columns
    rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in write.rows]
    return _encode(rows).decode()


def _arrays(table: Table, types: Types) -> str:
    return ", ".join(f"%s::{types[name]}[]" for name in table.columns)


def _typed(write: RowWrite, types: Types) -> list[str]:
    return [f"{name} {types[write.table.guard if name == EXPECTED else name]}" for name in write.columns]
