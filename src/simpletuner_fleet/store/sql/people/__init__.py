"""Stores people, what they may do, and where they are notified."""
