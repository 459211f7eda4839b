"""Manages teams, and what is allowed to whom, and records every change."""
