"""Serves the calls that workers make."""
