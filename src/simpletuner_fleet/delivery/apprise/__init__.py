"""Further services, told through Apprise: it writes the requests, and this server sends them."""
