"""Who calls: credentials, names, networks and how often."""
