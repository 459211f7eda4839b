"""Finds a training's numbers in its files, follows them, and sends them to the orchestrator."""
