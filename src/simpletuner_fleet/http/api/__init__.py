"""What can be called, row by row."""
