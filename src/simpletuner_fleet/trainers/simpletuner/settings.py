"""Makes the config.json and the dataloader for one attempt of SimpleTuner.

They are the user's own, with every path made absolute: its files are in the attempt's config folder, its output is
the attempt's alone, and its caches are kept for the next attempt of the same config and data.
"""

import contextlib
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.command import substitution
from simpletuner_fleet.trainers.config_files import with_own_files
from simpletuner_fleet.trainers.contract import Paths, TrainerError
from simpletuner_fleet.trainers.job_files import make_output
from simpletuner_fleet.trainers.job_trees import make_folder

WORKING_FOLDER = "cwd"
"""A setting of ours, as the other trainers have it: the trainer does not get to see it."""
OUTPUT = "output_dir"
CACHE_KEY = re.compile(r"(csv_|metadata_|shard_)?cache_dir(_\w+)?")
CACHE = "cache"
"""Where the trainer puts caches that nobody gave a place, both beneath its working folder and its output."""
CHANGES_NO_CACHE = re.compile(
    r"(output_dir|logging_dir|resume_from_checkpoint|cwd|report_to|max_train_steps|num_train_epochs|learning_rate.*|lr_.*"
    r"|optimizer.*|use_ema|ema_.*|checkpoint.*|validation_.*|validate_.*|num_eval_images|eval_steps_interval"
    r"|evaluation_type|tracker_.*|push_.*|hub_.*|webhook_.*|publishing_.*|model_card_.*|lora_.*|lycoris_config"
    r"|init_lora|disable_benchmark|save_.*|print_.*|user_prompt_library)"
)
"""Settings that change how it trains or what it tells, and nothing of what a VAE or a text encoder makes of the data."""


def settings_for(order: JobSubmit, paths: Paths) -> dict[str, Any]:
    """Returns the config.json as it is, but with this attempt's places."""
    fill = substitution(order, paths)
    own: dict[str, Any] = with_own_files(order.config, order.files, paths)
    settings = {key: fill(value) if isinstance(value, str) else value for key, value in own.items()}
    settings.pop(WORKING_FOLDER, None)
    if not settings:
        raise TrainerError("The config's settings are empty.")
    if order.dataloader is not None:
        _set(settings, "data_backend_config", str(paths.dataloader_file))
    _set(settings, OUTPUT, str(output_for(setting(settings, OUTPUT), order, paths)))
    return dict(_with_caches(settings, paths))


def dataloader_for(order: JobSubmit, paths: Paths) -> Any:
    return _with_caches(with_own_files(order.dataloader, order.files, paths), paths)


def output_for(chosen: Any, order: JobSubmit, paths: Paths) -> Path:
    """Tells where the attempt's checkpoints and results appear.

    A folder that is named in full, perhaps on a disk that all workers see, gets one inside it for each attempt: found in
    a common one, the checkpoint of another job would be gone on from, and its end taken for this one's.
    """
    if not isinstance(chosen, str) or not chosen:
        return paths.output_dir
    folder = Path(chosen).expanduser()
    if folder.is_relative_to(paths.attempt_dir):
        return folder
    if folder.is_absolute():
        return folder / f"{order.job_id}-{order.attempt}"
    inside = paths.attempt_dir / folder
    return inside if ".." not in folder.parts else paths.output_dir


def link_caches(settings: dict[str, Any], paths: Paths) -> None:
    """Links caches without a place of their own to where they are kept, so that they are no result of the job."""
    if paths.cache_dir is None:
        return
    output = Path(setting(settings, OUTPUT))
    if not output.is_relative_to(paths.attempt_dir):
        _make_output(f"settings.{f'--{OUTPUT}' if f'--{OUTPUT}' in settings else OUTPUT}", output, paths)
    for link, kept in ((paths.attempt_dir / CACHE, CACHE), (output / CACHE, "output-cache")):
        make_folder(paths.cache_dir / kept)
        with contextlib.suppress(FileExistsError):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(paths.cache_dir / kept, target_is_directory=True)


def _make_output(where: str, output: Path, paths: Paths) -> None:
    """Makes the attempt's folder at a full path, unless there is a trap: a job knows the names of its next attempts'."""
    paths.must_see(where, str(output.parent))
    try:
        make_output(output)
    except FileExistsError:
        raise TrainerError(
            f"{where}: {output} is there already, and nobody may write to it for this attempt."
        ) from None


def cache_key(order: JobSubmit) -> str:
    """Returns what two orders share if, and only if, one may use the caches that the other made.

    A setting that is not known to be harmless counts: to build a cache once more costs time, a wrong one the training.
    """
    counted = {
        name: value
        for key, value in order.config.items()
        if not CHANGES_NO_CACHE.fullmatch(name := key.lstrip("-").replace("-", "_"))
    }
    data = {mount: dataset.id for mount, dataset in (order.datasets or {}).items()}
    parts = [order.trainer, order.config_name, counted, order.dataloader, data]
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:20]


def setting(settings: dict[str, Any], name: str) -> Any:
    return settings.get(f"--{name}", settings.get(name))


def _with_caches(value: Any, paths: Paths) -> Any:
    """Puts relative places of caches where the next attempt finds them; a place in full is the user's own affair."""
    if paths.cache_dir is None:
        return value
    return _changed(value, lambda place: str(Path(paths.cache_dir or "") / place))


def _changed(value: Any, keep: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {
            key: keep(item) if _is_relative_cache(key, item) else _changed(item, keep)
            for key, item in value.items()
        }
    return [_changed(item, keep) for item in value] if isinstance(value, list | tuple) else value


def _is_relative_cache(key: Any, value: Any) -> bool:
    if not isinstance(key, str) or not isinstance(value, str) or not value or "://" in value:
        return False
    path = Path(value)
    name = key.lstrip("-").replace("-", "_")
    return bool(CACHE_KEY.fullmatch(name)) and not path.is_absolute() and not {"..", "~"} & set(path.parts)


def _set(settings: dict[str, Any], name: str, value: str) -> None:
    """Sets a key, whether written with or without dashes: a second spelling beside the first would be ambiguous."""
    settings[name if name in settings else f"--{name}"] = value
