"""Draws the charts of the pages: GPUs, usage, a loss curve, and the workers' last day."""
