"""One contract, three homes: memory, SQLite, PostgreSQL."""
