"""Checks manifests of checkpoints and artifacts, and decides which are kept and resumed from.

A manifest is a list of files by content. It is accepted only when every byte it names is stored, so whatever is listed
can be fetched whole. Paths are written by whoever ran the training: none is trusted.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from simpletuner_fleet.core.bounds import FreeText, Name, Whole
from simpletuner_fleet.core.errors import Invalid, JobSealed, StepBackwards, TooLarge
from simpletuner_fleet.core.policy import Policy

ManifestKind = Literal["checkpoint", "artifact"]

MAX_PATH_CHARS = 1024
MAX_SEGMENT_BYTES = 255
MAX_STEP = 2**53
LEFT_BEHIND_S = 7 * 86_400.0
"""How long after its end a worker that was away may still bring what an attempt left behind."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
SHA256_OF_NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class FileEntry(Struct, frozen=True, kw_only=True):
    path: FreeText
    """Relative, separated by '/'."""
    size: Whole
    sha256: Name


class Manifest(Struct, frozen=True, kw_only=True):
    kind: ManifestKind
    name: FreeText
    files: tuple[FileEntry, ...]
    step: Whole | None = None
    keep: Whole | None = None
    """How many checkpoints of its kind the config wants kept; None where it does not say."""


class StoredManifest(Struct, frozen=True, kw_only=True):
    id: str
    job_id: str
    attempt_id: str
    attempt_number: int
    epoch: int
    kind: ManifestKind
    name: str
    files: tuple[FileEntry, ...]
    total_bytes: int
    created_at: float
    worker_name: str
    step: int | None = None
    pinned_by: str = ""
    """The id of who keeps it from being deleted by age or number; empty: nobody."""


class ResumePoint(Struct, frozen=True, kw_only=True):
    """Names the checkpoint that a new attempt resumes from."""

    manifest_id: str
    step: int


def check_digest(sha256: str, path: str) -> None:
    if not SHA256.fullmatch(sha256):
        raise Invalid("A SHA-256 is 64 hexadecimal digits in lower case.", path=path)


def check_object(sha256: str, size: int, policy: Policy, path: str = "$") -> None:
    check_digest(sha256, f"{path}.sha256")
    if size < 0:
        raise Invalid("size is 0 or more.", path=f"{path}.size")
    if size > policy.max_object_bytes:
        raise TooLarge(f"One file may have at most {policy.max_object_bytes} bytes.")
    if (size == 0) is not (sha256 == SHA256_OF_NOTHING):
        raise Invalid("size and sha256 do not belong together.", path=f"{path}.size")


def check_manifest(manifest: Manifest, policy: Policy) -> None:
    """Raises what is wrong with it, naming the field."""
    if not NAME.fullmatch(manifest.name):
        raise Invalid(
            "A name is up to 128 letters, digits, '.', '_' and '-', and begins with a letter or digit.",
            path="$.manifest.name",
        )
    _check_step(manifest)
    if not manifest.files:
        raise Invalid("A manifest names at least one file.", path="$.manifest.files")
    if len(manifest.files) > policy.max_manifest_files:
        raise TooLarge(f"A manifest may name at most {policy.max_manifest_files} files.")
    for at, file in enumerate(manifest.files):
        where = f"$.manifest.files[{at}]"
        complaint = path_complaint(file.path)
        if complaint:
            raise Invalid(complaint, path=f"{where}.path")
        check_object(file.sha256, file.size, policy, where)
    check_places(manifest.files)


def _check_step(manifest: Manifest) -> None:
    if manifest.kind == "checkpoint" and manifest.step is None:
        raise Invalid("A checkpoint says its step.", path="$.manifest.step")
    if manifest.step is not None and not 0 <= manifest.step <= MAX_STEP:
        raise Invalid("A step is 0 or more.", path="$.manifest.step")


def path_complaint(path: str) -> str | None:
    """Returns what keeps this from being the path of a file beneath a folder; None if nothing does."""
    if not path or len(path) > MAX_PATH_CHARS:
        return f"A path has 1 to {MAX_PATH_CHARS} characters."
    if not path.isprintable() or "\\" in path:
        return "A path holds printable characters and no backslash."
    segments = path.split("/")
    if "" in segments or "." in segments or ".." in segments:
        return "A path is relative and goes down only."
    if len(max(path.encode().split(b"/"), key=len)) > MAX_SEGMENT_BYTES:
        return f"A name within a path has at most {MAX_SEGMENT_BYTES} bytes."
    return None


def check_places(files: Sequence[FileEntry]) -> None:
    """Raises Invalid where a file is named twice, or lies where another needs a folder."""
    paths = {file.path for file in files}
    if len(paths) != len(files):
        raise Invalid("A path is named twice.", path="$.manifest.files")
    # With the smallest character for a stroke, what lies in a folder follows the folder's own name.
    in_order = sorted(path.replace("/", "\0") for path in paths)
    for one, following in pairwise(in_order):
        if following.startswith(f"{one}\0"):
            folder = one.replace("\0", "/")
            raise Invalid(f"'{folder[:100]}' is named as a file and as a folder.", path="$.manifest.files")


def check_step_of_epoch(manifest: Manifest, epoch: int, known: Collection[StoredManifest]) -> None:
    """Refuses a lower step within one attempt, so that a late upload never passes for the newest."""
    if manifest.kind != "checkpoint" or manifest.step is None:
        return
    if any((one.name, one.step, one.epoch) == (manifest.name, manifest.step, epoch) for one in known):
        return  # it has grown: pictures are added to a checkpoint after it is finished
    reached = max(
        (one.step or 0 for one in known if one.kind == "checkpoint" and one.epoch == epoch), default=0
    )
    if manifest.step < reached:
        raise StepBackwards(f"This attempt has stored step {reached} already.", step=reached)


def check_left_behind(
    manifest: Manifest, known: Iterable[StoredManifest], *, ended_at: float | None, now: float
) -> None:
    """Raises JobSealed unless this may be added to a job that has ended.

    A worker that was away at the end brings what its attempt has left behind. It adds to what is stored, and replaces none
    of it; and it comes soon, or the trainer's folder has been open to others too long.
    """
    if any((one.kind, one.name) == (manifest.kind, manifest.name) for one in known):
        raise JobSealed(f"The job has ended, and its {manifest.name} is stored: it stays as it is.")
    if ended_at is None or now > ended_at + LEFT_BEHIND_S:
        raise JobSealed(
            f"The job ended more than {LEFT_BEHIND_S / 86_400:g} days ago: nothing is added to it."
        )


def same_content(stored: StoredManifest, manifest: Manifest) -> bool:
    return (stored.kind, stored.name, stored.step) == (manifest.kind, manifest.name, manifest.step) and set(
        stored.files
    ) == set(manifest.files)


def total_bytes(files: Iterable[FileEntry]) -> int:
    """Returns what is stored for them: the same content counts once."""
    return sum({file.sha256: file.size for file in files}.values())


def _age_order(manifest: StoredManifest) -> tuple[int, float, str]:
    return (manifest.step or 0, manifest.created_at, manifest.id)


def newest_checkpoint(manifests: Iterable[StoredManifest]) -> StoredManifest | None:
    """Returns the checkpoint with the highest step, and of several the newest."""
    return max((one for one in manifests if one.kind == "checkpoint"), key=_age_order, default=None)


def spoiled(manifests: Iterable[StoredManifest], below: int) -> list[StoredManifest]:
    """Returns the checkpoints that must not be resumed from: good ones are below this step."""
    return [one for one in manifests if one.kind == "checkpoint" and (one.step or 0) >= below]


def beyond_reach(failed_tries: Iterable[str], tries: int) -> frozenset[str]:
    """Returns the manifests that failed to be resumed from so often; `failed_tries` names one for each time."""
    return frozenset(id for id, times in Counter(failed_tries).items() if times >= tries)


ROLLING = "-rolling"
"""Ends the names of those that a trainer makes often and keeps few of: they never push out the others."""


class CheckpointLimits(Struct, frozen=True):
    """Limits how many checkpoints of a job are kept, at least one."""

    plain: int
    rolling: int


def limits_of(manifest: Manifest, bound: int) -> CheckpointLimits:
    """Returns the limits: the manifest's own decides for its kind, as far as the server's bound allows."""
    asked = bound if manifest.keep is None or manifest.keep < 1 else min(manifest.keep, bound)
    return (
        CheckpointLimits(bound, asked) if manifest.name.endswith(ROLLING) else CheckpointLimits(asked, bound)
    )


def to_drop(
    manifests: Sequence[StoredManifest],
    keep: CheckpointLimits | int,
    in_use: Collection[str] = (),
    useless: Collection[str] = (),
) -> list[StoredManifest]:
    """Returns what retention deletes: old checkpoints of each kind, and what a newer one of its name replaced.

    The newest checkpoint always stays; so does one that is pinned, or that a living attempt may still be fetching. What
    nobody could resume from is not counted: it must not displace the checkpoints made instead.
    """
    newest: dict[tuple[str, str], StoredManifest] = {}
    for one in manifests:
        if one.id in useless:
            continue
        known = newest.get((one.kind, one.name))
        if known is None or (one.epoch, one.created_at) >= (known.epoch, known.created_at):
            newest[one.kind, one.name] = one
    current = {one.id for one in newest.values()}
    checkpoints = sorted((one for one in newest.values() if one.kind == "checkpoint"), key=_age_order)
    limits = CheckpointLimits(keep, keep) if isinstance(keep, int) else keep
    rolling = [one for one in checkpoints if one.name.endswith(ROLLING)]
    plain = [one for one in checkpoints if not one.name.endswith(ROLLING)]
    beyond = (*plain[: -max(1, limits.plain)], *rolling[: -max(1, limits.rolling)])
    too_old = {one.id for one in beyond}
    return [
        one
        for one in manifests
        if one.id not in in_use and not one.pinned_by and (one.id not in current or one.id in too_old)
    ]
