"""`./dev machines`: real programs and clouds of our own that behave badly; or many days of it on virtual time."""
