"""Serves pools and machines."""
