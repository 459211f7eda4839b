"""A config bundle: what is stored under a name, and what it asks of a worker. Data, never code."""

import re
from typing import Any

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.policy import MAX_GPUS_PER_JOB, MAX_NAME_CHARS

NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_CHARS - 1}}}")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DEFAULT_TRAINER = "simpletuner"
BUNDLE_KEYS = {"trainer", "settings", "dataloader", "files", "env", "resources"}
MAX_BUNDLE_BYTES = 4 * 1024 * 1024
RESERVED_ENV = "SIMPLETUNER_"


class Resources(Struct, frozen=True, kw_only=True, omit_defaults=True):
    gpus: int | None = None
    min_vram_gb: float | None = None
    accelerator: str | None = None


class Bundle(Struct, frozen=True, kw_only=True):
    trainer: str = DEFAULT_TRAINER
    settings: dict[str, Any] = {}
    dataloader: Any = None
    files: dict[str, str] = {}
    env: dict[str, str] = {}
    resources: Resources = Resources()


def check_name(name: str, path: str, what: str = "name") -> str:
    if not NAME.fullmatch(name):
        raise Invalid(
            f"A {what} has 1 to {MAX_NAME_CHARS} letters, digits, '.', '_' or '-' and begins with a letter or digit.",
            path=path,
        )
    return name


def read_bundle(body: Any) -> Bundle:
    """A bundle, or a bare trainer config, which is taken as the settings of one."""
    if not isinstance(body, dict):
        raise Invalid("A config is a JSON object.", path="$")
    if "settings" not in body:
        body = {"settings": body}
    unknown = sorted(set(body) - BUNDLE_KEYS)
    if unknown:
        raise Invalid(
            f"A config has no field '{unknown[0]}'; it has {', '.join(sorted(BUNDLE_KEYS))}.",
            path=f"$.{unknown[0]}",
        )
    try:
        bundle = msgspec.convert(body, Bundle)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise Invalid(f"{message}.", path=path.rstrip("`") or "$") from None
    _check(bundle)
    return bundle


def _check(bundle: Bundle) -> None:
    check_name(bundle.trainer, "$.trainer", "trainer's name")
    for name in bundle.files:
        check_name(name, f"$.files.{name}", "file's name")
    for name, value in bundle.env.items():
        if not ENV_NAME.fullmatch(name) or name.upper().startswith(RESERVED_ENV):
            raise Invalid(
                f"'{name}' cannot be set for a trainer: use letters, digits and '_', and no name that begins "
                f"with {RESERVED_ENV}.",
                path=f"$.env.{name}",
            )
        if "\0" in value:
            raise Invalid("A variable's value cannot hold a NUL byte.", path=f"$.env.{name}")
    gpus_of(bundle)
    if (bundle.resources.min_vram_gb or 0) < 0:
        raise Invalid("min_vram_gb is 0 or more.", path="$.resources.min_vram_gb")
    if bundle.trainer == "command":
        _check_command(bundle.settings)


def _check_command(settings: dict[str, Any]) -> None:
    command = settings.get("command")
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise Invalid(
            "The trainer 'command' needs settings.command: a list of strings, the program first.",
            path="$.settings.command",
            next_step='For example {"command": ["python", "train.py", "--config", "{config}"]}.',
        )
    if any("\0" in word for word in command):
        raise Invalid("A command's word cannot hold a NUL byte.", path="$.settings.command")
    cwd = settings.get("cwd", "")
    if not isinstance(cwd, str) or "\0" in cwd:
        raise Invalid("settings.cwd is a path.", path="$.settings.cwd")


def setting(settings: dict[str, Any], name: str) -> Any:
    """A trainer's setting, whether its key is written with or without dashes before it."""
    return settings.get(name, settings.get(f"--{name}"))


def gpus_of(bundle: Bundle) -> int:
    """`resources.gpus`, else `num_processes`, else one."""
    if bundle.resources.gpus is not None:
        return check_gpus(bundle.resources.gpus, "$.resources.gpus")
    asked = setting(bundle.settings, "num_processes")
    if asked is None:
        return 1
    try:
        count = int(asked)
    except (TypeError, ValueError, OverflowError):
        raise Invalid("num_processes is a whole number.", path="$.settings.num_processes") from None
    if isinstance(asked, bool) or (isinstance(asked, float) and asked != count):
        raise Invalid("num_processes is a whole number.", path="$.settings.num_processes")
    if count < 1:
        raise Invalid("num_processes is 1 or more.", path="$.settings.num_processes")
    return check_gpus(count, "$.settings.num_processes")


def check_gpus(count: int, path: str) -> int:
    if not 0 <= count <= MAX_GPUS_PER_JOB:
        raise Invalid(f"A job takes 0 to {MAX_GPUS_PER_JOB} GPUs.", path=path)
    return count


def with_overrides(bundle: Bundle, overrides: dict[str, Any]) -> Bundle:
    """The bundle with settings replaced; a key finds its setting with or without dashes."""
    settings = dict(bundle.settings)
    for key, value in overrides.items():
        bare = key.removeprefix("--")
        for spelling in [name for name in (bare, f"--{bare}") if name in settings] or [key]:
            settings[spelling] = value
    changed = msgspec.structs.replace(bundle, settings=settings)
    _check(changed)
    return changed
