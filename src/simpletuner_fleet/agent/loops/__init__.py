"""The loops of the agent: the stream it listens to, and its heartbeats."""
