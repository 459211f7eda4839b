"""Stores what is too large for the database (uploads, datasets, logs and metrics), and deletes it again."""
