"""Defines all routes of the API, row by row."""
