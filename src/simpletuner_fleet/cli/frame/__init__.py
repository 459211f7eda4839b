"""Holds what all commands share: parsing, printing, errors, and private files."""
