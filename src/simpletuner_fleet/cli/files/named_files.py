"""Finds the files that a config names: beside it, where the trainer would look, or as the user says.

None is left out in silence. Small text goes into the bundle and is named `config/FILE` from then on, which a worker
finds wherever it works. What is large (models, datasets) or comes with the trainer is left to the worker, with a note.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from simpletuner_fleet.cli.files.config_layouts import CONFIG_FOLDER, plain_name
from simpletuner_fleet.cli.files.config_reading import json_of, text_of
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail
from simpletuner_fleet.core.configs.bundle import NAME, setting
from simpletuner_fleet.languages import _

DATALOADER_SETTING = "data_backend_config"
DATALOADER = "multidatabackend.json"
FILE_SETTINGS = frozenset(
    {
        DATALOADER_SETTING,
        "deepspeed_config",
        "lycoris_config",
        "publishing_config",
        "quantization_config",
        "user_prompt_library",
        "webhook_config",
    }
)
"""Settings that name a file unless they hold JSON themselves."""
MADE_BY_TRAINER = frozenset({"output_dir", "logging_dir", "cache_dir", "cache_dir_text", "cache_dir_vae"})
EXAMPLES = ("config/examples/", "simpletuner/examples/")
"""Names of what comes with the trainer's package, where it does."""
SMALL_FOLDER_BYTES, SMALL_FOLDER_FILES = 256 * 1024, 20
LEVELS_UP = 3
_TEXT_FILE = re.compile(r"[^\n{}<>|*?\"']+\.(json|jsonl|toml|ya?ml|txt|csv|py|sh)")
_LOCAL_PATH = re.compile(r"(/|~/|\./|\.\./).+")
_WEIGHTS = (".safetensors", ".ckpt", ".pt", ".pth", ".bin", ".gguf")
_INLINE = ("{", "[")


EVERY_SETTING = "all"


class FileChoices(Struct, frozen=True):
    """Holds the user's choices about the files that a config names, by setting."""

    files: Mapping[str, str] = {}
    left: Collection[str] = ()


NO_CHOICES = FileChoices()


class Missing(Struct, frozen=True):
    setting: str
    value: str
    looked_at: tuple[Path, ...]


class Gathered(Struct):
    settings: dict[str, Any]
    dataloader: Any = None
    files: dict[str, str] = {}
    taken: list[Path] = []


def gather(settings: dict[str, Any], main: Path, choices: FileChoices, notes: list[str]) -> Gathered:
    """Takes the files that the settings name, under the paths that a worker will find. Raises if any is missing."""
    gathered = Gathered(dict(settings))
    missing: list[Missing] = []
    for key, value in settings.items():
        name = key.lstrip("-").replace("-", "_")
        file = _file_for(name, value, main, choices, notes, missing)
        if file is None:
            continue
        gathered.taken.append(file)
        if name == DATALOADER_SETTING:
            gathered.dataloader = json_of(file, notes)
            gathered.settings[key] = f"{CONFIG_FOLDER}/{DATALOADER}"
        else:
            gathered.settings[key] = f"{CONFIG_FOLDER}/{_keep(gathered.files, file)}"
    known = {key.lstrip("-").replace("-", "_") for key in settings}
    unknown = {*choices.files, *choices.left} - {*known, EVERY_SETTING}
    if unknown:
        raise fail(
            _("the config has no setting '%(name)s'", name=min(unknown)),
            _("--file and --leave must name a setting of the config"),
            _("verify its name"),
            "E_CONFIG_FILE",
            ExitCode.USAGE,
        )
    if missing:
        raise _asked_for(missing)
    return gathered


def neighbour_dataloader(settings: dict[str, Any], main: Path) -> Path | None:
    """Returns the usual dataloader file beside a config that names none."""
    file = main.parent / DATALOADER
    return file if setting(settings, DATALOADER_SETTING) is None and file.is_file() else None


def gather_data(gathered: Gathered, main: Path, notes: list[str]) -> None:
    """Takes small folders of text that the dataloader names, such as captions; notes which a worker must have."""
    backends = gathered.dataloader if isinstance(gathered.dataloader, list) else []
    changed: list[Any] = []
    said: set[str] = set()
    for backend in backends:
        folder = backend.get("instance_data_dir") if isinstance(backend, dict) else None
        if isinstance(folder, str) and folder and "dataset:" not in folder and _is_local(folder):
            texts = _small_folder(folder, main.parent)
            if texts:
                place = _place_for(gathered.files, plain_name(Path(folder).name), texts)
                gathered.files |= {f"{place}/{name}": text for name, text in texts.items()}
                backend = {**backend, "instance_data_dir": f"{CONFIG_FOLDER}/{place}"}
            elif backend.get("type", "local") == "local" and folder not in said:
                said.add(folder)
                notes.append(_left_to_worker("instance_data_dir", folder))
        changed.append(backend)
    if changed:
        gathered.dataloader = changed


def _small_folder(name: str, near: Path) -> dict[str, str] | None:
    """Returns the text files of a folder that holds nothing else, and only a few of them."""
    folder = next((place for place in _places(name, near) if place.is_dir()), None)
    files = sorted(folder.iterdir())[: SMALL_FOLDER_FILES + 1] if folder else []
    small = len(files) <= SMALL_FOLDER_FILES and all(
        file.is_file() and _TEXT_FILE.fullmatch(file.name) and NAME.fullmatch(file.name) for file in files
    )
    if not small or sum(file.stat().st_size for file in files) > SMALL_FOLDER_BYTES:
        return None
    return {file.name: text_of(file) for file in files} or None


def _place_for(files: Mapping[str, str], wanted: str, texts: Mapping[str, str]) -> str:
    place, number = wanted, 1
    while any(files.get(f"{place}/{name}", text) != text for name, text in texts.items()):
        number += 1
        place = f"{wanted}-{number}"
    return place


def _is_local(value: str) -> bool:
    return "://" not in value and "\n" not in value


def _file_for(
    name: str, value: Any, main: Path, choices: FileChoices, notes: list[str], missing: list[Missing]
) -> Path | None:
    if name in choices.files:
        file = Path(os.path.expanduser(choices.files[name]))
        notes.append(_("%(setting)s: using %(file)s", setting=name, file=file))
        return file
    if (
        not isinstance(value, str)
        or not value
        or value.lstrip().startswith(_INLINE)
        or name in MADE_BY_TRAINER
    ):
        return None
    if name in choices.left or EVERY_SETTING in choices.left:
        if _names_text(name, value):
            notes.append(_("%(setting)s: %(value)s is left to the worker", setting=name, value=value))
        return None
    if not _names_text(name, value):
        if (_LOCAL_PATH.fullmatch(value) or value.endswith(_WEIGHTS)) and _is_local(value):
            notes.append(_left_to_worker(name, value))
        return None
    return _found(name, value, main, notes, missing)


def _names_text(name: str, value: str) -> bool:
    if "dataset:" in value or "://" in value or value.startswith("{"):
        return False
    return name in FILE_SETTINGS or (
        _TEXT_FILE.fullmatch(value) is not None and ("/" in value or " " not in value)
    )


def _found(name: str, value: str, main: Path, notes: list[str], missing: list[Missing]) -> Path | None:
    places = list(dict.fromkeys(_places(value, main.parent)))
    for place in places:
        if place.is_file():
            notes.append(_("%(setting)s: using %(file)s", setting=name, file=place))
            return place
    names = (Path(value).name, DATALOADER) if name == DATALOADER_SETTING else (Path(value).name,)
    besides = [main.parent / other for other in names]
    beside = next((file for file in besides if file.is_file()), None)
    if beside:
        notes.append(
            _(
                "%(setting)s names %(value)s, which does not exist; using %(file)s instead",
                setting=name,
                value=value,
                file=beside,
            )
        )
        return beside
    if value.startswith(EXAMPLES):
        notes.append(
            _(
                "%(setting)s: %(value)s is not here; it is left to the trainer on the worker, which may "
                "provide it",
                setting=name,
                value=value,
            )
        )
    else:
        missing.append(Missing(name, value, tuple(dict.fromkeys((*places, *besides)))))
    return None


def _places(value: str, folder: Path) -> Iterator[Path]:
    """Yields the paths at which the trainer would look, from the config's folder, those above it, and this one."""
    path = Path(os.path.expanduser(value))  # a user whom nobody knows here is left as written
    if path.is_absolute():
        yield path
        return
    bare = path.relative_to(CONFIG_FOLDER) if path.parts[:1] == (CONFIG_FOLDER,) else None
    above = folder.resolve()
    for place in (folder, *list(above.parents)[:LEVELS_UP], Path()):
        yield place / path
        if bare is not None:
            yield place / bare


def _keep(files: dict[str, str], file: Path) -> str:
    """Stores the text under a name of its own, since two folders may hold files of the same name."""
    text = text_of(file)
    stem, ending = plain_name(file.stem)[:100], file.suffix
    name, number = f"{stem}{ending}", 1
    while (name in files and files[name] != text) or name in ("config.json", DATALOADER):
        number += 1
        name = f"{stem}-{number}{ending}"
    files[name] = text
    return name


def _left_to_worker(name: str, value: str) -> str:
    return _(
        "%(setting)s: %(value)s is left to the worker; to include it, push it with  simpletuner data "
        "push  and write dataset://NAME",
        setting=name,
        value=value,
    )


def _asked_for(missing: list[Missing]) -> CliError:
    names = ", ".join(one.setting for one in missing)
    looked = "; ".join(
        f"{one.setting} = {one.value} ({', '.join(str(place) for place in one.looked_at)})" for one in missing
    )
    return fail(
        _("the config names files that are missing: %(names)s", names=names),
        _("looked for %(names)s here and found nothing", names=looked),
        (
            _("provide each with  --file %(setting)s=PATH", setting=missing[0].setting),
            _("or leave it to the worker on purpose with  --leave %(setting)s", setting=missing[0].setting),
        ),
        "E_CONFIG_FILE",
        ExitCode.NOT_FOUND,
    )
