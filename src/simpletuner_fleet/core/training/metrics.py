"""Reads lines of numbers and progress bars of a training, and computes points, rates and curves from them."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.bounds import LATEST_AT as LATEST_AT

MAX_STEP = 2**53
KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
MAX_KEYS = 64
GPU_KEY = re.compile(r"gpu\.\d{1,4}\.(utilization|memory_gb|temperature_c|power_w)", re.ASCII)
"""Told by the worker, beside the trainer's own: over time, as a step may take as long as it likes."""
MAX_GPU_KEYS = 256
MAX_LINE_CHARS = 64 * 1024
MAX_BAR_CHARS = 512
"""Terminals are no wider."""
_NOT_OF_A_KEY = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)
_STEP_NAMES = ("step", "global_step")
_TOTAL_NAMES = ("total", "max_steps", "total_steps")
_TIME_NAMES = ("time", "timestamp", "at")
_NOT_FINITE = frozenset({"NaN", "nan", "Infinity", "inf", "-Infinity", "-inf"})
_NO_VALUES = frozenset((*_STEP_NAMES, *_TOTAL_NAMES, *_TIME_NAMES, "schema_version", "metrics"))

_AFTER_PERCENT = re.compile(
    r"[^|]*\|\s*"
    r"(?P<step>\d{1,15})/(?P<total>\d{1,15})\s*\[(?P<elapsed>[\d:]+)<(?P<left>[\d:]+|\?)"
    r"(?:,\s*(?P<rate>[\d.]+|\?)(?P<unit>[^\s,\]/]*/[^\s,\]]+))?(?P<facts>[^\]]*)\]"
)
_PERCENT = re.compile(r"\d{1,3}\Z")
DRAWN = "%|"
"""What every bar has, and hardly any other line."""
_FACT = re.compile(r"(?<![A-Za-z0-9_./-])([A-Za-z0-9_./-]{1,64})=([^,\]\s]+)")
_OF_TRAINING = re.compile(r"\b(steps?|train\w*)\b", re.IGNORECASE)
LOSSES = ("loss", "train_loss", "step_loss", "train.loss")
_RATES = ("lr", "learning_rate", "train_lr", "train_learning_rate")


class Point(Struct, frozen=True, kw_only=True):
    """Holds the metrics of one training step; a loss may be NaN, which is worth reporting, too."""

    step: int
    values: dict[str, float]
    at: float | None = None
    total: int | None = None


class Bar(Struct, frozen=True, kw_only=True):
    """Describes a progress bar, as it is read from a line in tqdm's form."""

    step: int
    total: int
    description: str = ""
    rate: float | None = None
    """Steps a second."""
    eta_s: float | None = None
    values: dict[str, float] = {}

    @property
    def of_training(self) -> bool:
        """Tells whether the bar is of the training: those of loading and caching say so, and have no loss."""
        return (
            not self.description
            or _OF_TRAINING.search(self.description) is not None
            or loss_of(self.values) is not None
        )


def read_point(line: str | bytes) -> Point | None:
    """Reads a JSON line, flat or with the numbers in `metrics`; None where the line is not one."""
    if len(line) > MAX_LINE_CHARS:
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    inner = fields.get("metrics")
    fields = {**fields, **inner} if isinstance(inner, dict) else fields
    step = _first(fields, _STEP_NAMES, _whole)
    if step is None:
        return None
    return Point(
        step=step,
        values=values_of(fields),
        at=_first(fields, _TIME_NAMES, _time),
        total=_first(fields, _TOTAL_NAMES, _whole) or None,
    )


def values_of(fields: dict[str, Any]) -> dict[str, float]:
    """Returns the metrics that are given under any known name, as values by keys."""
    values = {
        key: number
        for name, value in fields.items()
        if (key := key_of(name)) not in _NO_VALUES and (number := _value(value)) is not None
    }
    return dict(list(values.items())[:MAX_KEYS])


def gpu_key(index: int, measure: str) -> str:
    """Returns the key of a GPU's measure; `index` is as the worker counts its GPUs."""
    return f"gpu.{index}.{measure}"


def key_of(name: str) -> str:
    return _NOT_OF_A_KEY.sub("_", name)[:64].strip(".") or "_"


def read_bar(line: str) -> Bar | None:
    """Returns the bar, or None for any other line, which most are: they cost a look for two characters."""
    description, _, drawn = line.partition(DRAWN) if len(line) <= MAX_BAR_CHARS else ("", "", "")
    # Without its end a pattern would try every way to share the rest between its parts.
    bar = _AFTER_PERCENT.match(drawn) if "]" in drawn and "|" not in description else None
    percent = _PERCENT.search(description) if bar else None
    if bar is None or percent is None:
        return None
    step, total = int(bar["step"]), int(bar["total"])
    if not total or step > total:
        return None
    values = {}
    for name, text in _FACT.findall(bar["facts"] or ""):
        number = _number(_parsed(text))
        if number is not None:
            values[key_of(name)] = number
    return Bar(
        step=step,
        total=total,
        description=description[: percent.start()].rstrip().removesuffix(":").strip(),
        rate=_bar_rate(bar["rate"], bar["unit"]),
        eta_s=_clock(bar["left"]),
        values=values,
    )


def last_bar(text: str) -> Bar | None:
    """Returns the newest bar of the training in a piece of output.

    One that says so, or has a loss, goes before all that name nothing: by such a bar whatever draws pictures may count
    its own steps.
    """
    newest = None
    for line in reversed(re.split(r"[\r\n]+", text)):
        bar = read_bar(line)
        if bar is None or not bar.of_training:
            continue
        if bar.description or loss_of(bar.values) is not None:
            return bar
        newest = newest or bar
    return newest


def loss_of(values: dict[str, float]) -> float | None:
    return next((values[name] for name in LOSSES if name in values), None)


def learning_rate_of(values: dict[str, float]) -> float | None:
    return next((values[name] for name in _RATES if name in values), None)


def rate_of(recent: Sequence[tuple[int, float]]) -> float | None:
    """Returns the steps a second over (step, time), oldest first; None while it cannot be told."""
    if len(recent) < 2:
        return None
    (first, began), (last, now) = recent[0], recent[-1]
    return _finite((last - first) / (now - began)) if last > first and now > began else None


def eta_s(step: int, total: int | None, rate: float | None) -> float | None:
    if total is None or not rate or rate <= 0:
        return None
    return _finite(max(0, total - step) / rate)


def _first(fields: dict[str, Any], names: Iterable[str], read: Any) -> Any:
    values = (read(fields[name]) for name in names if name in fields)
    return next((value for value in values if value is not None), None)


def _whole(value: Any) -> int | None:
    number = _number(value)
    if number is None or not 0 <= number <= MAX_STEP or number != int(number):
        return None
    return int(number)


def _value(value: Any) -> float | None:
    """Returns a number, also one that strict JSON must write as text, like NaN."""
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else _number(value)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _time(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
            value = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    number = _number(value)
    return number if number is not None and 0 <= number <= LATEST_AT else None


def _parsed(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _bar_rate(rate: str | None, unit: str | None) -> float | None:
    """Reads `12.5it/s`, or `1.5s/it` where a step takes longer than a second."""
    number = _finite(_parsed(rate or ""))
    if not number or not unit:
        return None
    return _finite(1 / number if unit.startswith("s/") else number)


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _clock(text: str) -> float | None:
    """Reads `01:30` or `1:04:30`."""
    parts = text.split(":")
    if len(parts) > 3 or not all(part.isdecimal() and len(part) < 8 for part in parts):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return float(seconds)
