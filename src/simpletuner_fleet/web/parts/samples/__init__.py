"""Finds the sample images that a trainer makes while it trains."""
