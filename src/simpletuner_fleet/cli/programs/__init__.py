"""Starts the programs: server, worker and demo, and writes the systemd units for the first two."""
