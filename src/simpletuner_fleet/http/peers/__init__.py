"""Connects the orchestrators of a fleet: the leader answers, the others forward requests to it."""
