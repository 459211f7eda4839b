"""Simulates the orchestrator: its processes, its database, its streams, and how one of several leads."""
