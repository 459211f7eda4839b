"""Signing in with providers of identity: what is asked of them over the network, and what their answers change here."""
