"""Defines a config bundle: what is stored under a name, and what it asks of a worker. It is data, never code."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.configs.datasets import check_mounts, references
from simpletuner_fleet.core.configs.spelling import nearest
from simpletuner_fleet.core.cutting import excerpt
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.policy import MAX_GPUS_PER_JOB, MAX_NAME_CHARS, MAX_NODES_PER_JOB
from simpletuner_fleet.core.publishing import Publish, check_publish
from simpletuner_fleet.core.training.watchdog import Watchdog, check_watchdog

NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_CHARS - 1}}}")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DEFAULT_TRAINER = "simpletuner"
BUNDLE_KEYS = {
    *("trainer", "settings", "dataloader", "files", "env", "secrets", "resources", "datasets", "watchdog"),
    "publish",
}
NEAR, SIMILAR = 0.85, 0.7
MAX_SECRETS = 32
MAX_BUNDLE_BYTES = 4 * 1024 * 1024
RESERVED_ENV = "SIMPLETUNER_"
LAUNCHERS = ("accelerate", "torchrun")
MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
MIXED_PRECISION = ("no", "fp16", "bf16", "fp8")
_OF_ALL = ("cwd", "expected_steps", "num_processes")
_OF_LAUNCHERS = (*_OF_ALL, "script", "module", "args", "launcher_args")
LAUNCH_SETTINGS: dict[str, tuple[str, ...]] = {
    "command": (*_OF_ALL, "command"),
    "accelerate": (*_OF_LAUNCHERS, "mixed_precision"),
    "torchrun": _OF_LAUNCHERS,
}
"""What the trainers that run a program of the user's own read themselves; the program may read more from its config."""
EITHER = frozenset({"script", "module"})
"""Whoever sets one of them does not want the other."""
WHAT_IS_RUN = EITHER | {"command"}
MOST_TOLD_CHARS = 100
MOST_LETTERS, MOST_COMPARED = 40, 100
"""Of a setting that is looked at for its spelling, and how many are: a config may hold a hundred thousand."""


class Resources(Struct, frozen=True, kw_only=True, omit_defaults=True):
    gpus: int | None = None
    min_vram_gb: float | None = None
    accelerator: str | None = None
    nodes: int | None = None


class Bundle(Struct, frozen=True, kw_only=True):
    trainer: str = DEFAULT_TRAINER
    settings: dict[str, Any] = {}
    dataloader: Any = None
    files: dict[str, str] = {}
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """By reference: the variable's name, and the name its value is stored under."""
    resources: Resources = Resources()
    datasets: dict[str, str] = {}
    """A name for the config's own use (`dataset://NAME`), and the dataset's id: sha256:…"""
    watchdog: Watchdog = Watchdog()
    publish: Publish | None = None
    """Where the model is brought when the job has completed."""


PARTS: dict[str, type[Struct]] = {"resources": Resources, "watchdog": Watchdog, "publish": Publish}


def check_name(name: str, path: str, what: str = "name") -> str:
    if not NAME.fullmatch(name):
        raise Invalid(
            f"A {what} must have 1 to {MAX_NAME_CHARS} letters, digits, '.', '_' or '-' and start with a "
            "letter or digit.",
            path=path,
        )
    return name


def is_file_name(name: str) -> bool:
    """Tells whether it is a plain name, or one in a single folder, which cannot be written anywhere else."""
    folder, _, own = name.rpartition("/")
    return bool(NAME.fullmatch(own)) and (not folder or bool(NAME.fullmatch(folder)))


def read_bundle(body: Any) -> Bundle:
    """Reads a bundle, or a bare trainer config, which is taken as the settings of a bundle."""
    if not isinstance(body, dict):
        raise Invalid("A config must be a JSON object.", path="$")
    if "settings" not in body:
        refuse_headless(body)
        body = {"settings": body}
    _refuse_unknown(body, sorted(BUNDLE_KEYS), "$")
    for part, kind in PARTS.items():
        if isinstance(body.get(part), dict):
            _refuse_unknown(body[part], kind.__struct_fields__, f"$.{part}")
    try:
        bundle = msgspec.convert(body, Bundle)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise Invalid(f"{message}.", path=path.rstrip("`") or "$") from None
    _check(bundle)
    return bundle


def _refuse_unknown(said: dict[str, Any], fields: Sequence[str], path: str) -> None:
    unknown = min(set(said) - set(fields), default=None)
    if unknown is None:
        return
    near = nearest(unknown, fields)
    unknown = excerpt(unknown, MOST_TOLD_CHARS)
    if near:
        raise Invalid(
            f"A config has no field '{unknown}' here; did you mean '{near}'?", path=f"{path}.{unknown}"
        )
    raise Invalid(
        f"A config has no field '{unknown}' here; there are {', '.join(fields)}.", path=f"{path}.{unknown}"
    )


def refuse_headless(body: dict[str, Any]) -> None:
    """Refuses a bare trainer config that names a trainer, or has a misspelt `settings`.

    A bare config never names a trainer: whoever names one meant a bundle, and left out `settings`.
    """
    for key in _first_keys(body, dict):
        if nearest(key, ("settings",), NEAR):
            raise Invalid(f"A config has no field '{key}'; did you mean 'settings'?", path=f"$.{key}")
    for key in _first_keys(body, str):
        if nearest(key, ("trainer",), NEAR):
            raise Invalid(
                "A config that names its trainer keeps the trainer's settings under 'settings'.",
                path=f"$.{key}",
                next_step='Write {"trainer": NAME, "settings": {…}}.',
            )


def _check(bundle: Bundle) -> None:
    check_name(bundle.trainer, "$.trainer", "trainer's name")
    for name in bundle.files:
        if not is_file_name(name):
            raise Invalid(
                "A config file name may use letters, digits, '.', '_' and '-', and may be inside one folder.",
                path=f"$.files.{name}",
            )
    for name, value in bundle.env.items():
        _check_variable(name, f"$.env.{name}")
        if "\0" in value:
            raise Invalid("A variable's value cannot contain a NUL byte.", path=f"$.env.{name}")
    _check_secrets(bundle)
    check_watchdog(bundle.watchdog, "$.watchdog")
    if bundle.publish:
        check_publish(bundle.publish, "$.publish")
    check_mounts(bundle.datasets, "$.datasets")
    check_nodes(nodes_of(bundle), gpus_of(bundle), "$.resources.nodes")
    if (bundle.resources.min_vram_gb or 0) < 0:
        raise Invalid("min_vram_gb must be 0 or more.", path="$.resources.min_vram_gb")
    if bundle.trainer in LAUNCH_SETTINGS:
        _check_spelling(bundle)
    if bundle.trainer == "command":
        _check_command(bundle.settings)
    if bundle.trainer in LAUNCHERS:
        check_launcher(bundle.trainer, bundle.settings)


def _first_keys(body: dict[str, Any], kind: type) -> list[str]:
    return list(islice((key for key, value in body.items() if isinstance(value, kind)), MOST_COMPARED))


def misspelt(bundle: Bundle, likeness: float) -> dict[str, str]:
    """Returns the settings that resemble one of their trainer's own that is not set, each with that one's name.

    A program may have settings of its own in its config, so a name that resembles none is no mistake.
    """
    own = LAUNCH_SETTINGS.get(bundle.trainer, ())
    names = {key: key.lstrip("-").replace("-", "_") for key in bundle.settings}
    either_is_set = not EITHER.isdisjoint(names.values())
    missing = [name for name in own if name not in names.values() and not (either_is_set and name in EITHER)]
    unknown = [key for key, name in names.items() if name not in own and len(key) <= MOST_LETTERS]
    near = {key: nearest(names[key], missing, likeness) for key in unknown[:MOST_COMPARED]}
    return {key: name for key, name in near.items() if name}


def _check_spelling(bundle: Bundle) -> None:
    """Refuses misspelt settings; for those that say what is run, a weaker resemblance is enough.

    A config is of no use without what it runs.
    """
    surely = misspelt(bundle, NEAR)
    for key, name in misspelt(bundle, SIMILAR).items():
        if key in surely or name in WHAT_IS_RUN:
            raise Invalid(
                f"The trainer '{bundle.trainer}' has no setting '{key}'; did you mean '{name}'?",
                path=f"$.settings.{key}",
            )


def check_references(bundle: Bundle) -> None:
    """Refuses a config whose texts refer to a dataset that is not named in `datasets`."""
    unnamed = references([bundle.settings, bundle.dataloader, bundle.env]) - bundle.datasets.keys()
    if unnamed:
        name = min(unnamed)
        raise Invalid(
            f"The config references the dataset '{name}', but datasets does not say which one that is.",
            path="$.datasets",
            next_step=f'Add "datasets": {{"{name}": "sha256:…"}}, as printed by \'simpletuner data push DIR\'.',
        )


def _check_variable(name: str, path: str) -> None:
    if not ENV_NAME.fullmatch(name) or name.upper().startswith(RESERVED_ENV):
        raise Invalid(
            f"'{name}' cannot be set for a trainer: use letters, digits and '_', and do not start with "
            f"{RESERVED_ENV}.",
            path=path,
        )


def _check_secrets(bundle: Bundle) -> None:
    """Checks the names of secrets; no error message repeats a value that was written here by mistake."""
    if len(bundle.secrets) > MAX_SECRETS:
        raise Invalid(f"A config can reference at most {MAX_SECRETS} secrets.", path="$.secrets")
    for variable, name in bundle.secrets.items():
        path = f"$.secrets.{variable}"
        _check_variable(variable, path)
        check_name(name, path, "secret's name")
        if variable in bundle.env:
            raise Invalid(
                f"{variable} is also set in env.", path=path, next_step=f"Remove {variable} from env."
            )


def _check_command(settings: dict[str, Any]) -> None:
    command = settings.get("command")
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise Invalid(
            "The trainer 'command' needs settings.command: a list of strings, the program first.",
            path="$.settings.command",
            next_step='For example {"command": ["python", "train.py", "--config", "{config}"]}.',
        )
    if any("\0" in word for word in command):
        raise Invalid("A command argument cannot contain a NUL byte.", path="$.settings.command")
    _check_cwd(settings)
    _check_expected_steps(settings)


def check_launcher(trainer: str, settings: dict[str, Any]) -> None:
    """Checks what accelerate and torchrun need: a script or a module, and lists of words as arguments."""
    script, module = settings.get("script"), settings.get("module")
    if (script is None) == (module is None):
        raise Invalid(
            f"The trainer '{trainer}' needs either settings.script or settings.module.",
            path="$.settings.script",
            next_step='For example {"script": "/data/train.py", "args": ["--out", "{output_dir}"]}.',
        )
    if script is not None and not _is_path(script):
        raise Invalid("settings.script must be the path of a Python file.", path="$.settings.script")
    if module is not None and not (isinstance(module, str) and MODULE.fullmatch(module)):
        raise Invalid(
            "settings.module must be a module name, like mypackage.train.",
            path="$.settings.module",
            next_step="For a file use settings.script.",
        )
    for name in ("args", "launcher_args"):
        _check_words(settings, name)
    processes_of(settings)
    precision = settings.get("mixed_precision")
    if trainer == "accelerate" and precision is not None and precision not in MIXED_PRECISION:
        raise Invalid(
            f"settings.mixed_precision must be one of {', '.join(MIXED_PRECISION)}.",
            path="$.settings.mixed_precision",
        )
    _check_cwd(settings)
    _check_expected_steps(settings)


def _check_expected_steps(settings: dict[str, Any]) -> None:
    steps = settings.get("expected_steps")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise Invalid("settings.expected_steps must be a number of steps.", path="$.settings.expected_steps")


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value and not value.startswith("-")


def _check_words(settings: dict[str, Any], name: str) -> None:
    words = settings.get(name, [])
    if not isinstance(words, list) or not all(isinstance(word, str) and "\0" not in word for word in words):
        raise Invalid(
            f"settings.{name} must be a list of strings, one per argument.",
            path=f"$.settings.{name}",
            next_step='Write numbers and flags as strings: ["--lr", "1e-4"].',
        )


def _check_cwd(settings: dict[str, Any]) -> None:
    cwd = settings.get("cwd", "")
    if not isinstance(cwd, str) or "\0" in cwd:
        raise Invalid("settings.cwd must be a path.", path="$.settings.cwd")


def setting(settings: dict[str, Any], name: str) -> Any:
    """Returns a trainer's setting, whether its key is written with or without dashes before it."""
    return settings.get(name, settings.get(f"--{name}"))


def gpus_of(bundle: Bundle) -> int:
    """Returns `resources.gpus`, else `num_processes`, else one."""
    if bundle.resources.gpus is not None:
        return check_gpus(bundle.resources.gpus, "$.resources.gpus")
    count = processes_of(bundle.settings)
    return 1 if count is None else check_gpus(count, "$.settings.num_processes")


def nodes_of(bundle: Bundle) -> int:
    """Returns `resources.nodes`, else one."""
    return 1 if bundle.resources.nodes is None else bundle.resources.nodes


def check_nodes(nodes: int, gpus: int, path: str) -> int:
    """Refuses GPUs that cannot be shared equally by the nodes of a job, with at least one for each."""
    if not 1 <= nodes <= MAX_NODES_PER_JOB:
        raise Invalid(f"A job can use 1 to {MAX_NODES_PER_JOB} nodes.", path=path)
    if nodes > 1 and (gpus < nodes or gpus % nodes):
        raise Invalid(
            f"So many GPUs ({gpus}) cannot be shared equally by so many nodes ({nodes}).",
            path=path,
            next_step="gpus counts those of all nodes together: ask for a multiple of the nodes.",
        )
    return nodes


def processes_of(settings: dict[str, Any]) -> int | None:
    """Returns `num_processes`, if it is said."""
    asked = setting(settings, "num_processes")
    if asked is None:
        return None
    try:
        count = int(asked)
    except (TypeError, ValueError, OverflowError):
        raise Invalid("num_processes must be a whole number.", path="$.settings.num_processes") from None
    if isinstance(asked, bool) or (isinstance(asked, float) and asked != count):
        raise Invalid("num_processes must be a whole number.", path="$.settings.num_processes")
    if count < 1:
        raise Invalid("num_processes must be 1 or more.", path="$.settings.num_processes")
    return count


def check_gpus(count: int, path: str) -> int:
    if not 0 <= count <= MAX_GPUS_PER_JOB:
        raise Invalid(f"A job can use 0 to {MAX_GPUS_PER_JOB} GPUs.", path=path)
    return count


def with_overrides(bundle: Bundle, overrides: dict[str, Any]) -> Bundle:
    """Returns the bundle with settings replaced; a key finds its setting with or without dashes."""
    settings = dict(bundle.settings)
    for key, value in overrides.items():
        bare = key.removeprefix("--")
        for spelling in [name for name in (bare, f"--{bare}") if name in settings] or [key]:
            settings[spelling] = value
    changed = msgspec.structs.replace(bundle, settings=settings)
    _check(changed)
    return changed
