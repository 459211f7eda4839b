"""Defines the JSON forms of everything that the API returns."""
