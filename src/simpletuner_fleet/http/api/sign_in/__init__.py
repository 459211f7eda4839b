"""Logging in otherwise than with a password: providers, terminals, and jobs of a continuous integration."""
