"""Programs that a benchmark starts in a process of their own."""
