"""Makes text that every database can hold: PostgreSQL refuses NUL, UTF-8 refuses lone surrogates."""

from typing import Any

from simpletuner_fleet.core.jobs.progress import Progress, read_progress

REPLACEMENT = "\ufffd"
_UNSTORABLE = dict.fromkeys((0, *range(55296, 57344)), REPLACEMENT)


def is_plain(text: str) -> bool:
    """Tells whether every database surely holds the text, as is true of nearly all texts."""
    return text.isascii() and "\0" not in text


def storable(text: str) -> str:
    """Returns the same text, with U+FFFD for what no database would hold."""
    if text.isascii() and "\0" not in text:  # as `is_plain` says, without the call
        return text
    return text.translate(_UNSTORABLE)


def storable_or_none(text: str | None) -> str | None:
    return None if text is None else storable(text)


def storable_json(value: Any) -> Any:
    """Returns the same JSON value with every string storable, and tuples as the lists they come back as."""
    if value is None or type(value) is int:
        return value
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(key)): storable_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable_json(item) for item in value]
    return value


def storable_progress(progress: Progress) -> Progress:
    if progress.phase is None and not progress.more:
        return progress  # numbers alone
    return read_progress(storable_json(progress.fields()))


def name_key(name: str) -> str:
    """Returns the key by which names compare: two names with the same key are the same name."""
    return storable(name).casefold()
