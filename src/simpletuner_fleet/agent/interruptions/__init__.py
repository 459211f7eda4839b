"""Watches for notices that this machine is about to be taken away, and decides which of them to believe."""
