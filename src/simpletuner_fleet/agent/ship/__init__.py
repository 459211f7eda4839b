"""Sends what an attempt leaves to the orchestrator: checkpoints, results, samples, logs and its final report."""
