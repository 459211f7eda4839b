"""Serves the console: pages rendered on the server, over the same orchestrator as the JSON API."""
