"""SimpleTuner Fleet runs training jobs: an orchestrator hands them out, and workers run them on GPUs."""

__version__ = "0.1.0"
