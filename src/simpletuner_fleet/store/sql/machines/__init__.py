"""Stores pools of machines, and the machines."""
