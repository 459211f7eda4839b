"""Implements the pages about pools and the machines that they start."""
