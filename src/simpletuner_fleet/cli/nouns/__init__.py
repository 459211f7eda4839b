"""What each command does, one file for each noun; `jobs` has a room of its own."""
