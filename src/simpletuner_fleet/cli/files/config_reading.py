"""Reads the trainer's own files: `config.json` and wrappers of it, `config.toml` and `config.env`."""

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

from simpletuner_fleet.cli.files.env_files import read_variables, settings_of_variables
from simpletuner_fleet.cli.frame.errors import CliError, usage
from simpletuner_fleet.core.configs.bundle import MAX_BUNDLE_BYTES
from simpletuner_fleet.languages import _

ENV_FILE = "config.env"
YAML = (".yaml", ".yml")
LONGEST_WHOLE, LONGEST_SHOWN = 64, 40
_LOOSE_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(\s*[}\]])')


def read_main(main: Path, notes: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the document of a main file, and the variables that its `config.env` sets.

    The document is what the file holds: a trainer's settings, or a whole bundle.
    """
    if main.suffix == ".env":
        return settings_of_variables(read_variables(text_of(main), main, notes), notes)
    document = _toml(main) if main.suffix == ".toml" else json_of(main, notes)
    if not isinstance(document, dict):
        raise unusable(
            main, _("it is not a JSON object"), _('a config is an object such as {"model_family": …}')
        )
    beside = main.parent / ENV_FILE
    if "settings" in document or not beside.is_file():
        return _unwrapped(document), {}
    launched, env = settings_of_variables(
        read_variables(text_of(beside), beside, notes), notes, only_launching=True
    )
    return {**launched, **_unwrapped(document)}, env


def json_of(file: Path, notes: list[str]) -> Any:
    """Reads a JSON file, if need be without the commas that a person left before a closing bracket."""
    text = text_of(file)
    if not text.strip():
        raise unusable(file, _("it is empty"), _("fix the file"))
    try:
        return _parsed(text, file)
    except ValueError as error:
        try:
            document = _parsed(_LOOSE_COMMA.sub(lambda match: match[1] or match[2], text), file)
        except ValueError:
            why = _("it is not JSON: %(error)s", error=error)
            if file.suffix.lower() in YAML:
                why = _("it is YAML, and configs are JSON, TOML or config.env")
            raise unusable(file, why, _("fix the file")) from None
    notes.append(_("%(file)s is valid JSON only without the trailing commas", file=file))
    return document


def _parsed(text: str, file: Path) -> Any:
    """Parses JSON and refuses NaN, infinities and numbers that are too large, which Python would accept."""

    def refuse(word: str) -> Any:
        raise unusable(file, _("%(word)s is not a JSON number", word=word), _("fix the file"))

    def finite(word: str) -> float:
        number = float(word)
        return number if math.isfinite(number) else refuse_large(word)

    def whole(word: str) -> int:
        number = int(word) if len(word) <= LONGEST_WHOLE else 2**64
        return number if -(2**63) <= number < 2**64 else refuse_large(word)

    def refuse_large(word: str) -> Any:
        short = word if len(word) <= LONGEST_SHOWN else f"{word[:LONGEST_SHOWN]}…"
        raise unusable(file, _("the number %(word)s is too large", word=short), _("fix the file"))

    try:
        return json.loads(text, parse_constant=refuse, parse_float=finite, parse_int=whole)
    except RecursionError:
        raise unusable(file, _("it is nested too deeply"), _("fix the file")) from None


def text_of(file: Path) -> str:
    if file.stat().st_size > MAX_BUNDLE_BYTES:
        raise unusable(
            file, _("it is larger than 4 MiB"), _("keep data out of the folder and reference it by path")
        )
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise unusable(
            file, _("it is not text"), _("keep only the config's own text files in the folder")
        ) from None


def unusable(file: Path, why: str, next_step: str) -> CliError:
    return usage(_("%(file)s is not a usable config", file=file), why, next_step)


def _toml(file: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(text_of(file))
        return dict(_parsed(json.dumps(document, default=str), file))
    except (ValueError, RecursionError) as error:
        raise unusable(file, _("it is not TOML: %(error)s", error=error), _("fix the file")) from None


def _unwrapped(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings alone: the trainer's console wraps them with metadata, as in `default.json`."""
    inner = document.get("config")
    return inner if isinstance(inner, dict) and document.keys() <= {"_metadata", "config"} else document
