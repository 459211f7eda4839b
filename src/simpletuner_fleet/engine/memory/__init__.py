"""What the writer keeps in memory: of the database, loaded anew after a failed commit, and what was last heard."""
