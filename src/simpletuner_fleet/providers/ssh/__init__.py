"""Provides machines that exist already: hosts on which a worker is started and ended over ssh."""
