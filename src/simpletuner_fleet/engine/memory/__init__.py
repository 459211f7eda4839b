"""Keeps the writer's memory: of the database, reloaded after a failed commit, and of when workers were heard."""
