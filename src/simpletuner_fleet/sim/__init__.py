"""Simulates the fleet on virtual time: the real orchestrator and agent core, with randomness from one seed.

Faults come from the seed as well.
"""
