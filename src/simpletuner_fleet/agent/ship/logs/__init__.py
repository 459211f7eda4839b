"""A trainer's output: kept on the worker, folded, and sent on."""
