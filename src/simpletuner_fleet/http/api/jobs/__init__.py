"""Serves jobs and all that belongs to them."""
