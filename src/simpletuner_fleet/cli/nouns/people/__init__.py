"""Commands about people, what they may do, and how they are told."""
