"""Pages about datasets."""
