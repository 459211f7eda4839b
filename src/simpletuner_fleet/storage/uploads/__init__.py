"""Receives uploads: one protocol for all content, and rules for what jobs and people may send."""
