"""Requests as the guides of the trainer's own server write them. They mean commands of ours, and no more than that."""
