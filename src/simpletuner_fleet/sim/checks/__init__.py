"""Checks what must hold while the fleet runs and when it is over, and counts what was seen."""
