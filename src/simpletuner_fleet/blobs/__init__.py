"""Bytes too many for the database: one contract, homes for it."""
