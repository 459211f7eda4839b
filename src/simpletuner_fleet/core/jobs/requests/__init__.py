"""Decides what people ask of an existing job: to stop, to save, to validate, to be marked, to be deleted."""
