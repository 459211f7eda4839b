"""One worker over several machines: its first node speaks for all of them, the others follow."""
