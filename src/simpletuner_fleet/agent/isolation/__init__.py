"""Separates jobs from the worker and from each other: decides what is granted, and builds the walls around attempts."""
