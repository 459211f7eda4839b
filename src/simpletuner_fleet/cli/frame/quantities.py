"""Formats moments, time spans and sizes for people."""

from datetime import UTC, datetime
from typing import Any

from simpletuner_fleet.languages import _, current
from simpletuner_fleet.languages.numbers import in_language

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def parse(moment: Any) -> datetime | None:
    if not isinstance(moment, str):
        return None
    try:
        return datetime.fromisoformat(moment)
    except ValueError:
        return None


def ago(moment: Any, now: datetime | None = None) -> str | None:
    elapsed = age(moment, now)
    return _("%(span)s ago", span=elapsed) if elapsed else None


def age(moment: Any, now: datetime | None = None) -> str | None:
    at = parse(moment)
    return None if at is None else span(((now or datetime.now(UTC)) - at).total_seconds())


def span(seconds: float) -> str:
    whole = max(0, int(seconds))
    for unit, size, smaller, small in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size}{unit}{rest:02d}{smaller}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def between(start: Any, end: Any, now: datetime | None = None) -> str | None:
    began, ended = parse(start), parse(end)
    if began is None:
        return None
    return span(((ended or now or datetime.now(UTC)) - began).total_seconds())


def spoken_size(size: float) -> str:
    """Formats a size for a sentence, in the reader's language; `size_text` is for a column of a table."""
    return in_language(current().lang, size_text(size))


def size_text(size: float) -> str:
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
