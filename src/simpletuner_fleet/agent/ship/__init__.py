"""What an attempt leaves, on its way to the orchestrator: checkpoints, results, samples, logs and its final report."""
