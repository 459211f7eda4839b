"""Holds what every page is made of: the layout, formatting, headers and static files."""
