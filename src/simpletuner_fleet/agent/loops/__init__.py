"""Runs the loops of the agent: the stream of orders, and the heartbeats."""
