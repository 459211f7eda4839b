"""Implements the `simpletuner jobs` commands."""
