"""What is let go: by age, and because nothing names it any more."""
