"""Known defects, put into a copy of our own code one at a time, to show that the tests notice."""
