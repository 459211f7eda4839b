"""Turns a job's config into a running training process."""
