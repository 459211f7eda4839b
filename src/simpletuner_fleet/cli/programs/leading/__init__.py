"""What a server does while it leads, and how several of them take turns."""
