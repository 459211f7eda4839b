"""Holds the migrations: numbered SQL files, one per database, that only go forward.

They are named `NNNN_what.sqlite.sql` and `NNNN_what.postgresql.sql`.
"""
