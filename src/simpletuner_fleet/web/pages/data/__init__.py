"""Implements the pages about datasets."""
