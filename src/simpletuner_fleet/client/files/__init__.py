"""Uploads folders and downloads what a job has made; both directions are verified."""
