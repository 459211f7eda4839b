"""What separates jobs from the worker and from each other: what is granted, which wall there can be, and whose it is."""
