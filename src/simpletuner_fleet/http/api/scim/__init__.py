"""Implements SCIM 2.0, by which an identity provider manages its users and groups here."""
