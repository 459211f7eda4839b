"""Serves what concerns the server itself: health, metrics, events and the API's description."""
