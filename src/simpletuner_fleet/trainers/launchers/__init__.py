"""Runs scripts and modules in several processes by a launcher."""
