"""Runs one worker over several machines: its first node speaks for all of them, and the others follow it."""
