"""Prepares, starts and watches the attempts on this machine, and keeps their folders for a while after they end."""
