"""Rows, texts and pictures that several pages show."""
