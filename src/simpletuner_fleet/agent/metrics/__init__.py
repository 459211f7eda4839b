"""A training's numbers: found in its files, followed and sent."""
