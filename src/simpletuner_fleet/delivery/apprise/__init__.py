"""Delivers messages to further services through Apprise, which writes the requests that this server sends."""
