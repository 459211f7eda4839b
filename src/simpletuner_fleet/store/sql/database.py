"""Defines what the operations need of a database: ways to run one named statement."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from simpletuner_fleet.store.rows.batches import RowWrite

Row = tuple[Any, ...]
Params = Mapping[str, Any]


class Database(Protocol):
    """Runs SQL with `:name` parameters.

    It raises Duplicate, ConcurrentChange, IllegalTransition or BatchLost.
    """

    def rows(self, sql: str, params: Params) -> list[Row]: ...
    def row(self, sql: str, params: Params) -> Row | None: ...
    def run(self, sql: str, params: Params) -> int:
        """Runs a statement, and returns how many rows it changed."""
        ...

    def many(self, sql: str, params: Sequence[Params]) -> None: ...
    def script(self, text: str) -> None:
        """Runs several statements without parameters."""
        ...


class SqlSession(Database, Protocol):
    """Runs SQL in transactions. Every method but `rollback` raises BatchLost when the transaction is gone."""

    def begin(self) -> None: ...
    def write_rows(self, writes: Sequence[RowWrite]) -> None:
        """Writes rows. Raises BatchLost where a row is missing, or is newer than the one to write."""
        ...

    def commit(self) -> None: ...
    def rollback(self) -> None:
        """Ends the transaction, whatever state it is in; never raises."""
        ...

    def tidy(self) -> None:
        """Does the upkeep between batches, when every caller has an answer."""
        ...

    def close(self) -> None: ...
