"""Sends nonsense to the real server and to the real agent, and looks at what they do."""
