"""Pools and machines."""
