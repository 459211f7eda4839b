"""Scripts and modules that a launcher runs in several processes."""
