"""Holds the rules for signing in with an identity that somebody else vouches for."""
