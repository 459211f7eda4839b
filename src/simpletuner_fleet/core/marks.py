"""Marks sentences of the core for translation, while the core itself uses English only."""


def N_(text: str) -> str:
    """Marks a sentence for the tool that gathers sentences to translate; it is translated where it is shown."""
    return text
