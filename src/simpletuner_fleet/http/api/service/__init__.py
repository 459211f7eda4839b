"""The server about itself: health, metrics, events and its own document."""
