"""Fetches what an attempt needs before it starts: its datasets and the checkpoint to go on from."""
