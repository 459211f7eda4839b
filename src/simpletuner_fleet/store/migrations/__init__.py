"""Numbered SQL files, one per database: `NNNN_what.sqlite.sql` and `NNNN_what.postgresql.sql`. Forward only."""
