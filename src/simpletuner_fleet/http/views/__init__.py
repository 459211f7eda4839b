"""How things look on the wire."""
