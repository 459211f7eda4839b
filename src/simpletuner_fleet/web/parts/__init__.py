"""Builds the rows, texts and images that several pages show."""
