"""What every page is made of: the shell, its parts of text, headers and assets."""
