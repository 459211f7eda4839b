"""Reads and writes the folders and files that travel to the orchestrator and back."""
