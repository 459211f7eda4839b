"""Finds jobs, annotates them, and acts on many at once."""
