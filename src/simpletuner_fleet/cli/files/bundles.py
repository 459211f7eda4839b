"""Turns a config on disk, a file or a folder, into the bundle that the orchestrator keeps, and back."""

import json
from pathlib import Path
from typing import Any

from msgspec import Struct

from simpletuner_fleet.cli.files.config_layouts import MAIN_FILES, Layout, find_layout
from simpletuner_fleet.cli.files.config_reading import json_of, read_main, text_of, unusable
from simpletuner_fleet.cli.files.named_files import (
    DATALOADER,
    EVERY_SETTING,
    NO_CHOICES,
    FileChoices,
    Gathered,
    gather,
    gather_data,
    neighbour_dataloader,
)
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail, not_together
from simpletuner_fleet.core.configs.bundle import (
    DEFAULT_TRAINER,
    MAX_BUNDLE_BYTES,
    NAME,
    is_file_name,
    read_bundle,
    refuse_headless,
)
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.languages import _

SETTINGS, REST = "config.json", "bundle.json"
"""`bundle.json` holds what a trainer's own files have no place for: trainer, env, secrets by name, and so on."""
KEPT_APART = ("trainer", "env", "secrets", "resources", "datasets", "watchdog", "publish")


class Loaded(Struct, frozen=True):
    bundle: dict[str, Any]
    name: str
    """What it is called where nobody says otherwise."""
    notes: list[str]
    """What was found where, mended, or left to the worker."""


def load(path: str, choices: FileChoices = NO_CHOICES) -> Loaded:
    """Reads and checks the config with everything that it names."""
    notes: list[str] = []
    try:
        layout = find_layout(path)
        bundle = _bundle(layout, choices, notes)
    except OSError as error:
        raise fail(
            _("cannot read %(filename)s", filename=error.filename or path),
            error.strerror or str(error),
            _("verify the path"),
            "E_CONFIG_FILE",
            ExitCode.NOT_FOUND if isinstance(error, FileNotFoundError) else ExitCode.FAILED,
        ) from None
    try:
        read_bundle(bundle)
    except Invalid as error:
        raise _refused(layout.main, error) from None
    if len(json.dumps(bundle)) > MAX_BUNDLE_BYTES:
        raise unusable(
            layout.main, _("it is larger than 4 MiB"), _("keep data out of it and reference it by path")
        )
    return Loaded(bundle, layout.name, notes)


def save(bundle: dict[str, Any], folder: Path, *, force: bool) -> list[Path]:
    """Writes the folder that `load` reads; refuses to overwrite files unless forced."""
    contents = {SETTINGS: _pretty(bundle.get("settings") or {})}
    if bundle.get("dataloader") is not None:
        contents[DATALOADER] = _pretty(bundle["dataloader"])
    rest = {key: bundle[key] for key in KEPT_APART if bundle.get(key)}
    if rest and rest != {"trainer": DEFAULT_TRAINER}:
        contents[REST] = _pretty(rest)
    for name, text in (bundle.get("files") or {}).items():
        if not is_file_name(name) or name in contents:
            raise fail(
                _("the config lists a file '%(name)s' that is not included", name=name),
                _("its name is not a plain file name, or is reserved"),
                _("view it with  simpletuner configs get NAME --json"),
                "E_CONFIG_FILE",
            )
        contents[name] = text
    there = [name for name in contents if _is_taken(folder, name)]
    if there and not force:
        raise fail(
            _("%(folder)s already exists", folder=folder / there[0]),
            _("nothing was written, so nothing is lost"),
            _("choose another folder, or overwrite with --force"),
            "E_EXISTS",
            ExitCode.CONFLICT,
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            place = folder / name
            place.parent.mkdir(exist_ok=True)
            if place.is_symlink():
                place.unlink()
            place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise fail(
            _("nothing can be written to %(folder)s", folder=folder),
            error.strerror or str(error),
            _("choose a folder that you can write to, on a disk with free space:  df -h"),
            "E_FILE",
        ) from None
    return [folder / name for name in contents]


def _is_taken(folder: Path, name: str) -> bool:
    """Tells whether something is there already; a link counts, also one that leads to nothing yet."""
    place = folder / name
    within_a_link = place.parent != folder and place.parent.is_symlink()
    return place.exists() or place.is_symlink() or within_a_link


def _bundle(layout: Layout, choices: FileChoices, notes: list[str]) -> dict[str, Any]:
    main = layout.main
    document, env = read_main(main, notes)
    if "settings" in document:
        _refuse_choices(choices, main)
        return document
    try:
        refuse_headless(document)
    except Invalid as error:
        raise _refused(main, error) from None
    rest = _rest(main.parent / REST, notes) if layout.whole_folder else {}
    if _is_simpletuners(rest):
        gathered = gather(document, main, choices, notes)
    else:
        _refuse_choices(choices, main.parent / REST)
        gathered = Gathered(document)
    usual = neighbour_dataloader(document, main) if layout.whole_folder else None
    if usual:
        gathered.dataloader = json_of(usual, notes)
        gathered.taken.append(usual)
    if layout.whole_folder:
        gathered.files |= _others(main.parent, gathered, notes)
    gather_data(gathered, main, notes)
    bundle: dict[str, Any] = {**rest, "settings": gathered.settings}
    if env:
        bundle["env"] = {**env, **(rest.get("env") or {})}
    if gathered.dataloader is not None:
        bundle["dataloader"] = gathered.dataloader
    if gathered.files:
        bundle["files"] = gathered.files
    return bundle


def _refused(file: Path, error: Invalid) -> CliError:
    where = error.params["errors"][0]["path"]
    return unusable(
        file,
        _("%(detail)s (at %(where)s)", detail=error.detail, where=where),
        error.next or _("fix the file"),
    )


def _refuse_choices(choices: FileChoices, because: Path) -> None:
    """Raises for choices about files where none are looked for: a bundle has its own, as do other trainers."""
    for flag, names in {"--file": set(choices.files), "--leave": {*choices.left} - {EVERY_SETTING}}.items():
        if names:
            raise not_together(flag, str(because), "simpletuner configs import --help")


def _is_simpletuners(rest: dict[str, Any]) -> bool:
    return bool(rest.get("trainer", DEFAULT_TRAINER) == DEFAULT_TRAINER)


def _rest(file: Path, notes: list[str]) -> dict[str, Any]:
    rest = json_of(file, notes) if file.is_file() else {}
    if not isinstance(rest, dict):
        raise unusable(file, _("it is not a JSON object"), _("fix the file"))
    return rest


def _others(folder: Path, gathered: Gathered, notes: list[str]) -> dict[str, str]:
    """Returns the folder's other text files; notes which are left out, since they are not text or no bundle has them."""
    own_names = {*MAIN_FILES, REST, DATALOADER, *gathered.files}
    taken = {file.resolve() for file in gathered.taken}
    texts: dict[str, str] = {}
    for file in sorted(folder.iterdir()):
        if (
            not file.is_file()
            or file.name in own_names
            or file.name.startswith(".")
            or file.resolve() in taken
        ):
            continue
        try:
            if not NAME.fullmatch(file.name):
                raise unusable(
                    file, _("its name is not a plain file name, or is reserved"), _("fix the file")
                )
            texts[file.name] = text_of(file)
        except CliError as error:
            notes.append(_("%(file)s is not included: %(why)s", file=file, why=error.trouble.why))
    return texts


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
