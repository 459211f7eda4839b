"""Gets a terminal a token of the user's own by way of a browser."""
