"""Folders and files on their way to the orchestrator and back."""
