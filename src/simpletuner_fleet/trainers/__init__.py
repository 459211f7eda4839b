"""How a config becomes a running process."""
