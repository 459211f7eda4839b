"""Manages sockets, connections and TLS beneath the edge."""
