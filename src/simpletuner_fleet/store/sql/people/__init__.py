"""Tables about people, what they may do, and where they are told."""
