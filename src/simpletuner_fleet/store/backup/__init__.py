"""Copies a database while it is in use, and restores a copy without giving back anything that was revoked since."""
