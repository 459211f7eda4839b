"""The walk of a request, from its head to its answer."""
