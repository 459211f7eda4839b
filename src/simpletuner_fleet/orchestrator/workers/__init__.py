"""Manages workers: how they register, stay connected, report, are administered and leave."""
