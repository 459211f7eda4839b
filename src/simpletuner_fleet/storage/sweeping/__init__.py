"""Deletes what is too old, and what nothing names any more."""
