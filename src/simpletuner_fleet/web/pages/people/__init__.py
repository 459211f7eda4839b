"""Implements the pages about people and what they may do."""
