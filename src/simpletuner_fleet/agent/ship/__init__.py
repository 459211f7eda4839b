"""What an attempt leaves, on its way to the orchestrator: checkpoints, results, samples and logs."""
