"""Manages pools and their machines: decides in one transaction, calls providers, and lets machines join by a token."""
