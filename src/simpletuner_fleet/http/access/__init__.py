"""Checks who calls: credentials, host names, networks and rates."""
