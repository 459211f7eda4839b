"""Implements the agent's side of the protocol with its orchestrator."""
