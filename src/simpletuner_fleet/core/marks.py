"""A mark for sentences of the core that people read in their own language; the core itself speaks English."""


def N_(text: str) -> str:
    """Marks a sentence for the tool that gathers sentences to translate; it is translated where it is shown."""
    return text
