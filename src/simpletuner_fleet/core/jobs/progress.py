"""Reads how far a training is, as its worker last reported.

Workers of every age and trainers of every kind speak here, so nothing is taken at its word: `read_progress` keeps what has
the right kind and a sensible size, and drops the rest field by field. A report is never refused for its progress, since it
may tell of an end. Fields not known here are kept as far as they are plain and few, and given out again as they came.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct, to_builtins

MAX_COUNT = 2**53
"""The largest whole number that every reader of JSON keeps."""
MAX_SPAN_S = 1e10
MAX_PHASE_CHARS = 200
MAX_MORE_FIELDS, MAX_MORE_NAME_CHARS, MAX_MORE_TEXT_CHARS = 16, 64, 200

NotFinite = Literal["NaN", "Infinity", "-Infinity"]
"""JSON has no such numbers, and a loss that is one must be told all the same."""
Number = float | NotFinite
_NOT_FINITE: dict[str, NotFinite] = {"NaN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity"}


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds how far a training is, as its worker last reported; every field may be missing."""

    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    loss: Number | None = None
    lr: Number | None = None
    rate: float | None = None
    """Steps in a second."""
    eta_s: float | None = None
    phase: str | None = None
    """What is done before the trainer starts, or after it has ended; a training that runs has none."""
    done_bytes: int | None = None
    total_bytes: int | None = None
    more: dict[str, str | float | bool | None] = {}
    """What else was said, plain values only; a field above that was said to be null is here, too."""

    @property
    def preparing(self) -> bool:
        return self.phase is not None

    def fields(self) -> dict[str, Any]:
        """Returns it as it travels and is stored: one flat object, without what was not said."""
        said: dict[str, Any] = to_builtins(self)
        if self.more:
            said |= said.pop("more")
        return said


def read_progress(fields: Mapping[str, Any]) -> Progress:
    """Returns what of these fields can be believed; whatever they hold, this raises nothing."""
    known: dict[str, Any] = {}
    more: dict[str, Any] = {}
    for name, value in fields.items():
        read = READERS.get(name)
        if read and value is not None:
            known[name] = read(value)
        elif len(more) < MAX_MORE_FIELDS and _is_plain(name, value):
            more[name] = value
    return Progress(**known, more=more)


def fields_of(progress: Progress | None) -> dict[str, Any] | None:
    return None if progress is None else progress.fields()


def is_preparing(progress: Progress | None) -> bool:
    return progress is not None and progress.preparing


def _finite(value: Any) -> float | None:
    """Returns a number as it is, whole or not; None if it is no number, or not of a sensible size."""
    if value is True or value is False:
        return None
    if isinstance(value, int):
        return value if -MAX_COUNT <= value <= MAX_COUNT else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def _count(value: Any) -> int | None:
    number = _finite(value)
    return int(number) if number is not None and 0 <= number <= MAX_COUNT else None


def _span(value: Any) -> float | None:
    number = _finite(value)
    return number if number is not None and 0 <= number <= MAX_SPAN_S else None


def _number(value: Any) -> Number | None:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return _NOT_FINITE.get(value) if isinstance(value, str) else _finite(value)


def _phase(value: Any) -> str | None:
    return value[:MAX_PHASE_CHARS] if isinstance(value, str) and value else None


def _is_plain(name: str, value: Any) -> bool:
    if len(name) > MAX_MORE_NAME_CHARS:
        return False
    if isinstance(value, str):
        return len(value) <= MAX_MORE_TEXT_CHARS
    return value is None or isinstance(value, bool) or _finite(value) is not None


READERS: dict[str, Callable[[Any], Any]] = {
    "step": _count,
    "total": _count,
    "epoch": _finite,
    "loss": _number,
    "lr": _number,
    "rate": _span,
    "eta_s": _span,
    "phase": _phase,
    "done_bytes": _count,
    "total_bytes": _count,
}
"""Every field of `Progress` but the last, and how what was said becomes it."""
