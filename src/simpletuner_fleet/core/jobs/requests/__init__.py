"""What people ask of a job once it is there: to stop, to save, to validate, to be marked, to be deleted."""
