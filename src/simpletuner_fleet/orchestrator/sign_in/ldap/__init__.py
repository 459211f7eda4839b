"""Implements the few LDAP messages (RFC 4511) that look a person up and try their password."""
