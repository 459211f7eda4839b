"""Calls to the orchestrator as steps that say what to do next; two small programs do them, one of which may wait."""
