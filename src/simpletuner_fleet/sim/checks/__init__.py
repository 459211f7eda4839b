"""What must hold while the fleet runs and when it is over, and what was seen of it."""
