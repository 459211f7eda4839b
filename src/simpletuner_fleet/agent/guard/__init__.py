"""Starts trainers' processes, bounds them by a lease, watches them, and ends them to the last one."""
