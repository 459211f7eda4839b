"""Pages about people and what they may do."""
