"""SCIM 2.0: a provider of identity tells of its users and groups."""
