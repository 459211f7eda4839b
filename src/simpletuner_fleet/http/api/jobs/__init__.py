"""Jobs and all that belongs to them."""
