"""What every command is made of: parsing, printing, errors, settings."""
