"""Faults that need more than signals and a proxy: a false clock, a dying disk, lost packets, a database from yesterday."""
