"""Implements the SimpleTuner trainer: its settings, options, pictures and checkpoints."""
