"""A config on disk, a file or a folder, to the bundle the orchestrator keeps, and back."""

import json
import re
from pathlib import Path
from typing import Any

from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail, usage
from simpletuner_fleet.core.configs.bundle import (
    DEFAULT_TRAINER,
    MAX_BUNDLE_BYTES,
    NAME,
    read_bundle,
    setting,
)
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.languages import _

SETTINGS, DATALOADER, REST = "config.json", "multidatabackend.json", "bundle.json"
"""`bundle.json` holds what a trainer's own files have no place for: trainer, env, secrets by name, and so on."""
KEPT_APART = ("trainer", "env", "secrets", "resources", "datasets", "watchdog")


def looks_like_path(text: str) -> bool:
    return "/" in text or "\\" in text or text.endswith(".json") or text in (".", "..")


def load(path: str) -> dict[str, Any]:
    """Reads and checks the config, and returns it as JSON."""
    place = Path(path).expanduser()
    try:
        bundle = _folder(place) if place.is_dir() else _file(place)
    except OSError as error:
        raise fail(
            _("cannot read %(filename)s", filename=error.filename or place),
            error.strerror or str(error),
            _("verify the path"),
            "E_CONFIG_FILE",
            ExitCode.NOT_FOUND if isinstance(error, FileNotFoundError) else ExitCode.FAILED,
        ) from None
    try:
        read_bundle(bundle)
    except Invalid as error:
        where = error.params["errors"][0]["path"]
        raise _bad(
            place,
            _("%(detail)s (at %(where)s)", detail=error.detail, where=where),
            error.next or _("mend the file"),
        ) from None
    if len(json.dumps(bundle)) > MAX_BUNDLE_BYTES:
        raise _bad(place, _("it is larger than 4 MiB"), _("keep data out of it and refer to it by path"))
    return bundle


def name_for(path: str) -> str:
    """Returns the folder's name, or the file's without its ending, in characters a name may have."""
    place = Path(path).expanduser().resolve()
    stem = place.name if place.is_dir() else place.stem
    if not place.is_dir() and place.name == SETTINGS:
        stem = place.parent.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "config"


def save(bundle: dict[str, Any], folder: Path, *, force: bool) -> list[Path]:
    """Writes the folder `load` reads; refuses to overwrite unless forced."""
    contents = {SETTINGS: _pretty(bundle.get("settings") or {})}
    if bundle.get("dataloader") is not None:
        contents[DATALOADER] = _pretty(bundle["dataloader"])
    rest = {key: bundle[key] for key in KEPT_APART if bundle.get(key)}
    if rest and rest != {"trainer": DEFAULT_TRAINER}:
        contents[REST] = _pretty(rest)
    for name, text in (bundle.get("files") or {}).items():
        if not NAME.fullmatch(name) or name in contents:
            raise fail(
                _("the config has a file '%(name)s' that is not written", name=name),
                _("its name is no plain file name, or one of ours"),
                _("look at it with  simpletuner configs get NAME --json"),
                "E_CONFIG_FILE",
            )
        contents[name] = text
    there = [name for name in contents if (folder / name).exists()]
    if there and not force:
        raise fail(
            _("%(folder)s is there already", folder=folder / there[0]),
            _("nothing was written, so that nothing is lost"),
            _("choose another folder, or overwrite with --force"),
            "E_EXISTS",
            ExitCode.CONFLICT,
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in contents]


def _folder(folder: Path) -> dict[str, Any]:
    settings = _json(folder / SETTINGS)
    if not isinstance(settings, dict):
        raise _bad(folder / SETTINGS, _("it is no JSON object"), _("mend the file"))
    rest = _json(folder / REST) if (folder / REST).is_file() else {}
    if not isinstance(rest, dict):
        raise _bad(folder / REST, _("it is no JSON object"), _("mend the file"))
    dataloader = _dataloader_file(settings, folder)
    own_names = {SETTINGS, REST, dataloader.name if dataloader else DATALOADER}
    others = [
        file
        for file in sorted(folder.iterdir())
        if file.is_file() and file.name not in own_names and not file.name.startswith(".")
    ]
    bundle: dict[str, Any] = {**rest, "settings": settings}
    if dataloader:
        bundle["dataloader"] = _json(dataloader)
    if others:
        bundle["files"] = {file.name: _text(file) for file in others}
    return bundle


def _file(file: Path) -> dict[str, Any]:
    """Reads a whole bundle, or a trainer's config with the dataloader it names, if that lies beside it."""
    document = _json(file)
    if not isinstance(document, dict):
        raise _bad(file, _("it is no JSON object"), _('a config is an object such as {"model_family": …}'))
    if "settings" in document:
        return document
    dataloader = _dataloader_file(document, file.parent) if setting(document, "data_backend_config") else None
    return {"settings": document, **({"dataloader": _json(dataloader)} if dataloader else {})}


def _dataloader_file(settings: dict[str, Any], folder: Path) -> Path | None:
    file_name = setting(settings, "data_backend_config")
    for name in (Path(file_name).name if isinstance(file_name, str) else "", DATALOADER):
        if name and (folder / name).is_file():
            return folder / name
    return None


def _json(file: Path) -> Any:
    try:
        return json.loads(_text(file))
    except ValueError as error:
        raise _bad(file, _("it is not JSON: %(error)s", error=error), _("mend the file")) from None


def _text(file: Path) -> str:
    if file.stat().st_size > MAX_BUNDLE_BYTES:
        raise _bad(
            file, _("it is larger than 4 MiB"), _("keep data out of the folder and refer to it by path")
        )
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise _bad(
            file, _("it is no text"), _("keep only the config's own text files in the folder")
        ) from None


def _bad(file: Path, why: str, next_step: str) -> CliError:
    return usage(_("%(file)s is no config that could be used", file=file), why, next_step)


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
