"""The agent's side of the conversation with its orchestrator."""
