"""Stores bytes that are too many for the database: logs, metrics, checkpoints and artifacts."""
