"""Uploads: one protocol for all content, and what jobs and people may send by it."""
