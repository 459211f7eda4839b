"""Lets people annotate jobs, change them while they wait, and act on many at once."""
