"""Serves the guide: finished pages in every language, which `./dev guide` builds from docs/guide."""
