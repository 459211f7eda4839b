"""What is too large for the database: uploads, datasets, logs and metrics, and how they are let go."""
