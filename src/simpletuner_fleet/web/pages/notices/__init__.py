"""Pages about being told."""
