"""Finds the machine's GPUs and samples how they are doing."""
