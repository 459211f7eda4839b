"""Describes datasets, which are folders of files identified by their content.

A dataset's id is the SHA-256 of its manifest, and a manifest lists every file by path, size and SHA-256 in one canonical
form. So the same folder has the same id wherever it was read, and whoever has the id can verify every byte.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid, TooLarge
from simpletuner_fleet.core.people.visibility import Belonging, Visibility
from simpletuner_fleet.core.policy import MAX_NAME_CHARS, Policy
from simpletuner_fleet.core.training.checkpoint import (
    SHA256,
    FileEntry,
    check_object,
    check_places,
    path_complaint,
    total_bytes,
)

PREFIX = "sha256:"
FORMAT = "simpletuner-dataset/1"
MAX_DATASETS_PER_JOB = 16
MAX_HELD = 200
"""How many datasets a worker tells of, the last used first."""
_NAME = rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_CHARS - 1}}}"
MOUNT = re.compile(_NAME, re.ASCII)
REFERENCE = re.compile(rf"dataset://({_NAME})|\$\{{dataset:({_NAME})\}}", re.ASCII)


class Dataset(Struct, frozen=True, kw_only=True):
    id: str
    """64 hexadecimal digits; people see it with `sha256:` before it."""
    name: str
    files: int
    total_bytes: int
    manifest_bytes: int
    created_at: float
    created_by: str
    owner: str = ""
    """The id of whoever pushed it first."""
    team: str = ""
    visibility: Visibility = Visibility.EVERYBODY

    @property
    def belongs(self) -> Belonging:
        return Belonging(self.owner, self.team, self.visibility)


class DatasetManifest(Struct, frozen=True, kw_only=True):
    files: tuple[FileEntry, ...]
    format: str = FORMAT


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(DatasetManifest).decode


def canonical(files: Iterable[FileEntry]) -> bytes:
    """Returns the manifest of these files in its one canonical form."""
    return _encode(DatasetManifest(files=tuple(sorted(files, key=lambda file: file.path))))


def id_of(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()


def prefixed_id(dataset_id: str) -> str:
    """Returns the id as people and the API write it."""
    return PREFIX + dataset_id


def read_id(text: str, path: str) -> str:
    """Reads a dataset's id, with or without the prefix `sha256:`."""
    bare = text.removeprefix(PREFIX)
    if not SHA256.fullmatch(bare):
        raise Invalid(
            "A dataset is identified by its content: sha256: and 64 hexadecimal digits.",
            path=path,
            next_step="List them with 'simpletuner data list', or create one with 'simpletuner data push "
            "DIR'.",
        )
    return bare


def read_manifest(data: bytes, policy: Policy) -> tuple[FileEntry, ...]:
    """Reads a manifest, or raises what is wrong with it.

    A form that is not canonical would give one folder two ids.
    """
    try:
        manifest = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"The manifest is not readable: {error}.", path="$.id") from None
    if manifest.format != FORMAT:
        raise Invalid(f"The manifest's format is not {FORMAT}.", path="$.id")
    check_files(manifest.files, policy)
    if canonical(manifest.files) != data:
        raise Invalid("The manifest is not in canonical form.", path="$.id")
    return manifest.files


def check_files(files: tuple[FileEntry, ...], policy: Policy) -> None:
    if not files:
        raise Invalid("A dataset must have at least one file.", path="$.files")
    if len(files) > policy.max_dataset_files:
        raise TooLarge(
            f"A dataset can have at most {policy.max_dataset_files} files.",
            next_step="Pack small files into archives, or push several datasets.",
        )
    for at, file in enumerate(files):
        complaint = path_complaint(file.path)
        if complaint:
            raise Invalid(complaint, path=f"$.files[{at}].path")
        check_object(file.sha256, file.size, policy, f"$.files[{at}]")
    check_places(files)


def dataset_of(
    dataset_id: str, name: str, files: tuple[FileEntry, ...], manifest_bytes: int, *, by: str, now: float
) -> Dataset:
    return Dataset(
        id=dataset_id,
        name=name,
        files=len(files),
        total_bytes=total_bytes(files),
        manifest_bytes=manifest_bytes,
        created_at=now,
        created_by=by,
    )


def check_mounts(datasets: Mapping[str, str], path: str) -> dict[str, str]:
    """Checks the `datasets` of a config: each has a name that the config uses, and a dataset's id."""
    if len(datasets) > MAX_DATASETS_PER_JOB:
        raise Invalid(f"A job can use at most {MAX_DATASETS_PER_JOB} datasets.", path=path)
    for name in datasets:
        if not MOUNT.fullmatch(name):
            raise Invalid(
                f"A dataset name must have 1 to {MAX_NAME_CHARS} letters, digits, '.', '_' or '-' and "
                "start with a letter or digit.",
                path=f"{path}.{name[:100]}",
            )
    return {name: prefixed_id(read_id(text, f"{path}.{name}")) for name, text in datasets.items()}


def references(value: Any) -> set[str]:
    """Returns the names of datasets that strings anywhere in it point to, as dataset://NAME or ${dataset:NAME}."""
    names: set[str] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if "dataset:" in one:
                names |= {match[1] or match[2] for match in REFERENCE.finditer(one)}
        elif isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list | tuple):
            waiting.extend(one)
    return names


def with_places(value: Any, places: Mapping[str, str]) -> Any:
    """Returns the same with every reference replaced by the folder it stands for; unknown names stay as they are."""
    if isinstance(value, str):
        return REFERENCE.sub(_place_in(places), value) if "dataset:" in value else value
    if isinstance(value, dict):
        return {key: with_places(item, places) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_places(item, places) for item in value]
    return value


def _place_in(places: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda match: places.get(match[1] or match[2], match[0])
