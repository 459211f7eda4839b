"""Declares the commands about people, what they may do, and how they are notified."""
