"""Signing in with an identity that somebody else vouches for. Rules only."""
