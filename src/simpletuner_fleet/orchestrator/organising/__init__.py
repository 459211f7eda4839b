"""Teams, and what is allowed to whom: made, changed, and written down."""
