"""Processes a request, from its head to its answer."""
