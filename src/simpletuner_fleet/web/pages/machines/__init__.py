"""Pages about pools and the machines that they bring."""
