"""Writes a bundle into an attempt's config folder. Names are ids, so no file can land elsewhere."""

from collections.abc import Mapping
from typing import Any

import msgspec

from simpletuner_fleet.core.configs.bundle import is_file_name
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Paths, TrainerError
from simpletuner_fleet.trainers.job_files import PASSING, read_job_file

CONFIG_FOLDER = "config/"
"""A config names its own files with this before them, as the trainer itself does."""


def write_config_files(order: JobSubmit, paths: Paths, config: dict[str, Any]) -> None:
    """Writes `config.json`, the dataloader beside it if there is one, and the bundle's other files."""
    own = {paths.config_file.name, paths.dataloader_file.name}
    for name in order.files:
        if not is_file_name(name):
            raise TrainerError(f"files: {name!r} is no file name; use letters, digits, '.', '_' and '-'.")
        if name in own:
            raise TrainerError(f"files: {name!r} is written from the config itself.")
    _write(paths, paths.config_file.name, msgspec.json.format(msgspec.json.encode(config), indent=2))
    if order.dataloader is not None:
        dataloader = msgspec.json.format(msgspec.json.encode(order.dataloader), indent=2)
        _write(paths, paths.dataloader_file.name, dataloader)
    for name, text in order.files.items():
        _write(paths, name, text.encode("utf-8", "surrogateescape"))


def with_own_files(value: Any, files: Mapping[str, str], paths: Paths) -> Any:
    """Returns the same with every name of a file or folder of the config's own (`config/NAME`) made whole.

    The trainer may then work in any folder.
    """
    if isinstance(value, dict):
        return {key: with_own_files(item, files, paths) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_own_files(item, files, paths) for item in value]
    if isinstance(value, str) and value.startswith(CONFIG_FOLDER):
        name = value.removeprefix(CONFIG_FOLDER).rstrip("/")
        if name in files or (name and any(file.startswith(f"{name}/") for file in files)):
            return str(paths.config_dir / name)
    return value


def read_setting(paths: Paths, name: str) -> Any:
    """Reads it from the config.json as it was written, however the key is spelt; None where there is none.

    Not as the job may have changed it since: it would lead its worker to others' files.
    """
    settings = _written(paths)
    return next((value for key, value in settings.items() if _plain(key) == name), None)


def change_setting(paths: Paths, name: str, value: Any) -> None:
    """Changes it in the config.json as it was written; a second spelling beside the first would be ambiguous."""
    settings = _written(paths)
    spelt = next((key for key in settings if _plain(key) == name), name)
    config = msgspec.json.encode({**settings, spelt: value})
    _write(paths, paths.config_file.name, msgspec.json.format(config, indent=2))


def _plain(key: str) -> str:
    return key.lstrip("-").replace("-", "_")


def _written(paths: Paths) -> dict[str, Any]:
    try:
        is_kept = paths.kept_config is not None and paths.kept_config.exists()
        file = paths.kept_config if paths.kept_config and is_kept else paths.config_file
        return msgspec.json.decode(read_job_file(file), type=dict[str, Any])
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno in PASSING:
            raise
        raise TrainerError(f"{paths.config_file.name} could not be read again: {error}.") from error


def _write(paths: Paths, name: str, content: bytes) -> None:
    try:
        file = paths.config_dir / name
        file.parent.mkdir(mode=0o700, exist_ok=True)
        file.write_bytes(content)
        if paths.kept_config and name == paths.config_file.name:
            paths.kept_config.write_bytes(content)
    except (FileExistsError, IsADirectoryError) as error:  # the config names one file as another's folder
        raise TrainerError(f"{name} could not be written: {error.strerror}.") from error
