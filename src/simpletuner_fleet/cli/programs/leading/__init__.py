"""Runs what a server does while it leads, and decides which of several servers leads."""
