"""Copies of a database while it is used, and the way back from one that gives nobody back what was taken from them."""
