"""Accepts requests as the guides of the trainer's own server write them.

They map to our own requests, and to no more.
"""
