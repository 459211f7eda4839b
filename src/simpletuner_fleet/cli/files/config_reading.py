"""The trainer's own files, read: `config.json` and wrappers of it, `config.toml`, `config.env`."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from simpletuner_fleet.cli.files.env_files import read_variables, settings_of_variables
from simpletuner_fleet.cli.frame.errors import CliError, usage
from simpletuner_fleet.core.configs.bundle import MAX_BUNDLE_BYTES
from simpletuner_fleet.languages import _

ENV_FILE = "config.env"
_LOOSE_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(\s*[}\]])')


def read_main(main: Path, notes: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The document of a main file, and the variables that its `config.env` sets.

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
    """Reads it as it is, or without the commas that a person left before a closing bracket."""
    text = text_of(file)
    try:
        return json.loads(text)
    except ValueError as error:
        try:
            document = json.loads(_LOOSE_COMMA.sub(lambda match: match[1] or match[2], text))
        except ValueError:
            raise unusable(file, _("it is not JSON: %(error)s", error=error), _("fix the file")) from None
    notes.append(_("%(file)s is valid JSON only without the trailing commas", file=file))
    return document


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
        return dict(json.loads(json.dumps(document, default=str)))
    except ValueError as error:
        raise unusable(file, _("it is not TOML: %(error)s", error=error), _("fix the file")) from None


def _unwrapped(document: dict[str, Any]) -> dict[str, Any]:
    """The trainer's console wraps settings with what it knows about them, as in `default.json`."""
    inner = document.get("config")
    return inner if isinstance(inner, dict) and document.keys() <= {"_metadata", "config"} else document
