"""Implements the one contract for stores in three ways: in memory, in SQLite and in PostgreSQL."""

from simpletuner_fleet.store.failures import StoreBusy, StoreRefused
from simpletuner_fleet.store.memory.store import MemoryStore
from simpletuner_fleet.store.opening import open_store
from simpletuner_fleet.store.sqlite import SqliteStore

__all__ = ["MemoryStore", "SqliteStore", "StoreBusy", "StoreRefused", "open_store"]
