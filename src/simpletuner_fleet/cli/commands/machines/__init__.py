"""Declares the commands about pools and the machines that they start."""
