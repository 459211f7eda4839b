"""Lets administrators manage workers, people and their credentials."""
