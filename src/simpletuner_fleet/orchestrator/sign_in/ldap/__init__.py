"""The few messages of LDAP (RFC 4511) with which somebody is looked up and their password is tried."""
