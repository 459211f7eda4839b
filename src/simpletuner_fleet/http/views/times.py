"""Reads times as callers write them."""

import math
import re
from datetime import UTC, datetime

from simpletuner_fleet.core.errors import Invalid

MAX_SECONDS = 1e11
"""Some thousand years before and after 1970."""

AGO = re.compile(r"(\d{1,6})\s*([smhdw])")
UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def read_moment(text: str | None, path: str, now: float) -> float | None:
    """Reads the same as `read_time`, or a time ago: 90s, 30m, 24h, 7d, 2w. An empty text is no time."""
    ago = AGO.fullmatch(text.strip()) if text else None
    return now - int(ago[1]) * UNIT_S[ago[2]] if ago else read_time(text or None, path)


def read_time(text: str | None, path: str) -> float | None:
    """Reads RFC 3339, or seconds since 1970. A time without a zone counts as UTC."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = _from_rfc3339(text, path)
    if not math.isfinite(seconds) or abs(seconds) > MAX_SECONDS:
        raise Invalid("Expected a time such as 2026-01-31T12:00:00Z.", path=path)
    return seconds


def _from_rfc3339(text: str, path: str) -> float:
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        raise Invalid("Expected a time such as 2026-01-31T12:00:00Z.", path=path) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
