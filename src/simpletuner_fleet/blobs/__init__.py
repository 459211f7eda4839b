"""Bytes too many for the database: logs, metrics, checkpoints, artifacts."""
