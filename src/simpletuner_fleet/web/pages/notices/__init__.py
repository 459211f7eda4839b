"""Implements the pages about notifications."""
