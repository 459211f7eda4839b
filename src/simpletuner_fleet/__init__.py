"""SimpleTuner Fleet: an orchestrator and its workers."""

__version__ = "0.1.0"
