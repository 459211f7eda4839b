"""Attempts on this machine: prepared, started, watched, ended, kept for a while."""
