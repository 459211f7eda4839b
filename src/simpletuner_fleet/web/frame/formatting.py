"""Formats values as plain text on the server; the browser, which knows the reader's locale, makes them local.

A page has hundreds of these. What is put into a tag is escaped by hand, since `Markup.format` takes five times as long.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from simpletuner_fleet.core.money.amounts import amount_text, typed_amount
from simpletuner_fleet.http.edge.routes import rfc3339
from simpletuner_fleet.languages import current
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.languages.names import status_name
from simpletuner_fleet.languages.numbers import in_language
from simpletuner_fleet.web.frame.assets import ASSETS

MISSING = "\u2013"
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400


def time_tag(at: float | str | None, style: str = "relative", missing: str = MISSING) -> Markup:
    """Formats a time for the browser to make local.

    `style` is relative, clock (time of day), date (day and time), moment (with seconds) or elapsed (counting up).
    """
    stamp = rfc3339(at) if isinstance(at, int | float) else at
    if not stamp:
        return _absent(missing)
    shown = stamp[:16].replace("T", " ")
    return Markup(f'<time datetime="{escape(stamp)}" data-time="{escape(style)}">{escape(shown)}</time>')


def number_tag(value: float | None, digits: int | None = None, missing: str = MISSING) -> Markup:
    """Formats a count or a figure; step numbers and ids are written as they are."""
    if value is None:
        return _absent(missing)
    text = f"{value:.{digits}f}" if digits is not None else str(value)
    shown_digits = "" if digits is None else digits
    return Markup(f'<data value="{escape(value)}" data-number="{shown_digits}">{escape(text)}</data>')


def size_tag(size: float | None, missing: str = MISSING) -> Markup:
    if size is None:
        return _absent(missing)
    return Markup(f'<data value="{int(size)}" data-number="bytes">{bytes_text(size)}</data>')


def bytes_text(size: float) -> str:
    for unit in UNITS[:-1]:
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {UNITS[-1]}"


def local_amount(micros: int, currency: str, *, exact: bool = False) -> str:
    return in_language(current().lang, amount_text(micros, currency, exact=exact))


def duration_tag(seconds: float | None, missing: str = MISSING) -> Markup:
    if seconds is None:
        return _absent(missing)
    return Markup(f'<data value="{round(seconds, 1)}" data-number="duration">{duration_text(seconds)}</data>')


def _absent(missing: str) -> Markup:
    return Markup(f"<span class='muted'>{escape(missing)}</span>")


def duration_text(seconds: float) -> str:
    whole = round(seconds)
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min {whole % MINUTE_S} s"
    if whole < DAY_S:
        return f"{whole // HOUR_S} h {whole % HOUR_S // MINUTE_S} min"
    return f"{whole // DAY_S} d {whole % DAY_S // HOUR_S} h"


@lru_cache(maxsize=256)
def icon(name: str, label: str = "") -> Markup:
    """Returns an icon; without a label it is decoration, and hidden from screen readers."""
    heard = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    drawing = escape(f"{ASSETS.url('vendor/icons.svg')}#{name}")
    return Markup(f'<svg class="icon" {heard} focusable="false"><use href="{drawing}"/></svg>')


class Look(NamedTuple):
    mark: str
    style: str


WORKER_LOOKS = {
    "idle": Look("●", "is-ok"),
    "busy": Look("▶", "is-busy"),
    "connecting": Look("◌", "is-connecting"),
    "draining": Look("◐", "is-warn"),
    "offline": Look("○", ""),
}
JOB_LOOKS = {
    "blocked": Look("◫", "is-warn"),
    "queued": Look("◷", ""),
    "dispatched": Look("◌", "is-connecting"),
    "running": Look("▶", "is-busy"),
    "cancelling": Look("◐", "is-warn"),
    "completed": Look("●", "is-ok"),
    "failed": Look("✕", "is-bad"),
    "cancelled": Look("○", ""),
}
UNKNOWN = Look("?", "")


def badge(status: str, kind: str = "job") -> Markup:
    """Shows a mark and a word, never colour alone."""
    look = (WORKER_LOOKS if kind == "worker" else JOB_LOOKS).get(status, UNKNOWN)
    mark = f'<span class="mark" aria-hidden="true">{look.mark}</span>'
    name = escape(status_name(current(), kind, status))
    return Markup(f'<span class="badge {look.style}" data-status="{escape(status)}">{mark}{name}</span>')


GLOBALS: dict[str, Callable[..., Any]] = {"badge": badge, "icon": icon}


def translated(english: str) -> str:
    """Translates what the orchestrator or a worker wrote down, where it is one of our sentences."""
    return detail_text(current(), english)


FILTERS: dict[str, Callable[..., Any]] = {
    "time": time_tag,
    "number": number_tag,
    "size": size_tag,
    "duration": duration_tag,
    "translated": translated,
    "amount": local_amount,
    "typed_amount": typed_amount,
    "exact_amount": partial(local_amount, exact=True),
}
