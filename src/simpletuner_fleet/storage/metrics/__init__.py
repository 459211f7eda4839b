"""Stores the metrics of trainings in packed form outside the database, and reads them as curves."""
