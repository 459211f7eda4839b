"""SCIM 2.0 (RFC 7643, RFC 7644): what a provider of identity says of its users and groups before they log in. Rules only."""
