"""Logs in without a password: through providers, from terminals, and for jobs of a continuous integration."""
