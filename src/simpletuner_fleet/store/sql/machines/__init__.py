"""Pools of machines, and the machines."""
