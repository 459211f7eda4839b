"""Who is told of what, when and how often: rules without a clock, a network or a database."""
