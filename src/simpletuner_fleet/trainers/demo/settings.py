"""Reads the part of a SimpleTuner-like config.json that this trainer understands; other keys are named and ignored.

It needs only the standard library: the worker reads it to check a config, without NumPy.
"""

import dataclasses
import json
import math
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ALIASES = {
    "checkpoint_step_interval": "checkpointing_steps",
    "validation_step_interval": "validation_steps",
}


class SettingsError(Exception):
    """One field of the config cannot be used; the message names it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    output_dir: str = "output"
    max_train_steps: int = 2000
    train_batch_size: int = 128
    learning_rate: float = 4e-3
    lr_warmup_steps: int = 50
    checkpointing_steps: int = 500
    checkpoints_total_limit: int = 3
    validation_steps: int = 500
    num_eval_images: int = 16
    resume_from_checkpoint: str = "latest"
    seed: int = 42
    num_processes: int = 1
    demo_device: str = "auto"
    demo_step_delay_s: float = 0.0
    demo_guard_delay_s: float = 0.0
    demo_nan_at_step: int = 0
    demo_fail_at_step: int = 0
    demo_fail_message: str = "the config asked for this failure"
    demo_crash_signal_at_step: int = 0
    demo_crash_signal: str = "SIGKILL"
    demo_hang_at_step: int = 0
    demo_ignore_sigterm: bool = False
    demo_allocate_gb: float = 0.0
    demo_faults_on_attempts: list[int] = dataclasses.field(default_factory=list)


DEVICES = ("auto", "cpu", "cuda")
AT_LEAST_ONE = frozenset({"max_train_steps", "train_batch_size", "num_eval_images", "num_processes"})


def read_settings(path: Path) -> tuple[Settings, list[str]]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise SettingsError(f"{path} must hold an object of settings.")
    return parse_settings(config)


def parse_settings(config: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """Returns the settings, and the keys that mean nothing here. Keys may be written with dashes before and within."""
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for key, value in config.items():
        plain = key.lstrip("-").replace("-", "_")
        name = ALIASES.get(plain, plain)
        if name not in fields:
            unknown.append(key)
        elif name in values:
            raise SettingsError(f"{key}: this setting is there twice, in two spellings.")
        elif value is not None:
            values[name] = _CONVERT[fields[name].type](key, value)
    settings = Settings(**values)
    _check_values(settings)
    return settings, unknown


def _check_values(settings: Settings) -> None:
    for name in sorted(AT_LEAST_ONE):
        if getattr(settings, name) < 1:
            raise SettingsError(f"{name} must be at least 1, not {getattr(settings, name)}.")
    if settings.demo_device not in DEVICES:
        raise SettingsError(f"demo_device must be one of {', '.join(DEVICES)}.")
    if settings.demo_crash_signal not in signal.Signals.__members__:
        raise SettingsError(f"demo_crash_signal: there is no signal {settings.demo_crash_signal!r}.")


def _number(key: str, value: Any) -> float:
    """Reads a number; configs hold numbers as numbers or as text."""
    try:
        number = (
            float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
        )
    except ValueError:
        number = None
    if number is None or not math.isfinite(number) or number < 0:
        raise SettingsError(f"{key} must be a number, zero or more, not {value!r}.")
    return number


def _whole(key: str, value: Any) -> int:
    number = _number(key, value)
    if number != int(number):
        raise SettingsError(f"{key} must be a whole number, not {value!r}.")
    return int(number)


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{key} must be text, not {value!r}.")
    return value


def _yes_or_no(key: str, value: Any) -> bool:
    known = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in known:
        return known[value.lower()]
    raise SettingsError(f"{key} must be true or false, not {value!r}.")


def _whole_numbers(key: str, value: Any) -> list[int]:
    if not isinstance(value, list):
        raise SettingsError(f"{key} must be a list of whole numbers, not {value!r}.")
    return [_whole(key, each) for each in value]


_CONVERT: dict[Any, Callable[[str, Any], Any]] = {
    int: _whole,
    float: _number,
    str: _text,
    bool: _yes_or_no,
    list[int]: _whole_numbers,
}
