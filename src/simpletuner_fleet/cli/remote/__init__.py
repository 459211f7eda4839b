"""Talks to an orchestrator: the connection, its calls, and finding what the user means."""
