"""Implements the commands, with one file for each noun; `jobs` has a package of its own."""
