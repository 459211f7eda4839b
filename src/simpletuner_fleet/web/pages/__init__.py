"""Implements the pages, one file for each or for several that belong together: routes and content."""
