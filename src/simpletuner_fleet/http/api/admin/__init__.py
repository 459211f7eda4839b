"""Workers, people and their credentials, for administrators."""
