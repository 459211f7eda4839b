"""Talking to an orchestrator: the connection, its calls, and finding what a person means."""
