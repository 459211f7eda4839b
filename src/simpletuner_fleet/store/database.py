"""What the operations need of a database: four ways to run one named statement."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Row = tuple[Any, ...]
Params = Mapping[str, Any]


class Database(Protocol):
    """SQL with `:name` parameters. Raises Duplicate, ConcurrentChange, IllegalTransition or BatchLost."""

    def rows(self, sql: str, params: Params) -> list[Row]: ...
    def row(self, sql: str, params: Params) -> Row | None: ...
    def run(self, sql: str, params: Params) -> int:
        """How many rows it changed."""
        ...

    def many(self, sql: str, params: Sequence[Params]) -> None: ...
    def script(self, text: str) -> None:
        """Several statements without parameters."""
        ...


class Session(Database, Protocol):
    """A database with transactions. Every method raises BatchLost when the transaction is gone."""

    def begin(self) -> None: ...
    def savepoint(self) -> None: ...
    def release(self) -> None: ...
    def undo(self) -> None:
        """Back to the savepoint, which is released."""
        ...

    def commit(self) -> None: ...
    def rollback(self) -> None:
        """Ends the transaction, whatever state it is in; never raises."""
        ...

    def tidy(self) -> None:
        """Upkeep between batches, when everybody has had an answer."""
        ...

    def close(self) -> None: ...
