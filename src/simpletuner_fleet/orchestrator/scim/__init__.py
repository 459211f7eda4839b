"""Applies what a provider says by SCIM about users and groups, in the transaction that stores it."""
