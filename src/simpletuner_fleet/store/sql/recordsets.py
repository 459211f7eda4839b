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


def statement(write: RowWrite, types: Types) -> str:
    """Returns the statement that inserts or updates all rows which its one parameter lists."""
    table = write.table
    new = f"json_to_recordset(%s::json) AS new({', '.join(_typed(write, types))})"
    if not write.update:
        names = ", ".join(table.columns)
        return f"INSERT INTO {table.name} ({names}) SELECT {names} FROM {new} {write.on_conflict}"
    sets = ", ".join(f"{name} = new.{name}" for name in table.written)
    same_key = " AND ".join(f"{table.name}.{name} = new.{name}" for name in table.keys)
    guard = f" AND {table.name}.{table.guard} = new.{EXPECTED}" if table.guard else ""
    return f"UPDATE {table.name} SET {sets} FROM {new} WHERE {same_key}{guard}"


def parameter(write: RowWrite) -> str:
    names = write.columns
    rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in write.rows]
    return _encode(rows).decode()


def _typed(write: RowWrite, types: Types) -> list[str]:
    return [f"{name} {types[write.table.guard if name == EXPECTED else name]}" for name in write.columns]
