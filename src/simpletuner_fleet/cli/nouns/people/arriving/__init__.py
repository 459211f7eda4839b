"""How a terminal comes to a token of its person's own, with a browser."""
