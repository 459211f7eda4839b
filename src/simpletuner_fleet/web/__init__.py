"""The console: pages rendered on the server, over the same orchestrator that the JSON API speaks for."""
