"""Publishes what a job has made to where its owner wants it."""
