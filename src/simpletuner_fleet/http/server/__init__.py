"""Sockets, connections and TLS beneath the edge."""
