"""The agent, and an orchestrator that lies to it."""
