"""Implements the rules of SCIM 2.0 (RFC 7643, RFC 7644), by which identity providers manage users and groups.

A provider describes them before they log in. It holds rules only.
"""
