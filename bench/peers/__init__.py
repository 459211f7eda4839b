"""What a user would pick instead of us, started for a comparison in the same run."""
