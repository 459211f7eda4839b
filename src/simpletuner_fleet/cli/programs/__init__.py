"""The programs: server, worker, demo, and systemd's units for them."""
