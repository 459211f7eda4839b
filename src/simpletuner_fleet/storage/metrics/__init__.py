"""The numbers of trainings: taken as they come, packed outside the database, read as curves."""
