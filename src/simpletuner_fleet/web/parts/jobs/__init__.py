"""Builds what pages show of jobs: rows, columns, states, and the fields of the Train form."""
