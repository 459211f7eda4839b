"""Pools and their machines: decided in one transaction, asked for and destroyed at their providers, joined by a token."""
