"""Uploads a folder: walks it, hashes it in threads, and sends only what is missing, in parts."""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import httpx2
from msgspec import Struct

from simpletuner_fleet.client import interruption
from simpletuner_fleet.client.errors import ClientError, fail, unreachable
from simpletuner_fleet.client.files.file_api import SEALING_TIMEOUT_S, FileApi
from simpletuner_fleet.client.time_limits import Pace, is_in_vain, sent
from simpletuner_fleet.client.troubles import NOT_FOUND
from simpletuner_fleet.core.configs.datasets import canonical, id_of
from simpletuner_fleet.core.training.checkpoint import FileEntry, path_complaint
from simpletuner_fleet.languages import N_, _
from simpletuner_fleet.protocol.uploads import PART_BYTES

ASKED_AT_ONCE = 5_000
SENT_AT_ONCE = 4
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
ROUNDS = 3
PIECE_BYTES = 64 * 1024
READ_BYTES = 256 * 1024
OBJECTS = "/api/data/objects"
KEEPS_NOTHING = N_("what is sent there is answered, and does not arrive")
TRAINERS_INDEX = re.compile(r"aspect_ratio_bucket_(indices|metadata)(_.*)?\.json")
"""What SimpleTuner writes beside pictures: full paths of this machine, which are of no use on another one."""


class Content(Struct, frozen=True):
    """Holds what is to be sent under one SHA-256: a file of this machine, or the manifest."""

    size: int
    source: Path | bytes


class Pushed(Struct, frozen=True):
    """Describes a folder to be uploaded, as it was read."""

    id: str
    files: tuple[FileEntry, ...]
    contents: dict[str, Content]
    """By SHA-256, the manifest among them."""
    left_out: tuple[str, ...] = ()
    """Index files of the trainer's own."""

    @property
    def bytes(self) -> int:
        return sum(content.size for content in self.contents.values())


Progress = Callable[[str, int, int], None]
"""What is done ("hash" or "send"), how many bytes more are done, and how many there are in all."""


def files_under(folder: Path) -> Iterator[Path]:
    """Yields every file, in no order; follows links to files. Raises at a link to a folder, which could be a cycle."""
    for name in os.listdir(folder):
        path = folder / name
        try:
            kind = path.stat().st_mode
        except OSError as error:
            raise _unusable(path, error.strerror or str(error)) from None
        if stat.S_ISREG(kind):
            yield path
        elif stat.S_ISDIR(kind) and not path.is_symlink():
            yield from files_under(path)
        elif stat.S_ISDIR(kind):
            raise _unusable(path, _("it is a symbolic link to a folder"))
        else:
            raise _unusable(path, _("it is neither a file nor a folder"))


def read_folder(folder: Path, progress: Progress, *, with_indices: bool = False) -> Pushed:
    if not folder.is_dir():
        raise fail(
            _("cannot push %(folder)s", folder=folder),
            _("there is no such folder"),
            _("verify the path"),
            "E_DATA_FOLDER",
            NOT_FOUND,
        )
    paths = list(files_under(folder))
    indices = {path for path in paths if not with_indices and TRAINERS_INDEX.fullmatch(path.name)}
    paths = [path for path in paths if path not in indices]
    total = sum(path.stat().st_size for path in paths)

    def entry(path: Path) -> tuple[FileEntry, Path]:
        place = path.relative_to(folder).as_posix()
        complaint = path_complaint(place)
        if complaint or not _is_text(place):
            raise _unusable(path, complaint or _("its name is not UTF-8"))
        try:
            sha256, size = _digest_and_size(path)
        except OSError as error:
            raise _unusable(path, error.strerror or str(error)) from None
        progress("hash", size, total)
        return FileEntry(path=place, size=size, sha256=sha256), path

    read = interruption.side_by_side(entry, paths, min(8, os.cpu_count() or 1))
    entries = sorted(read, key=lambda one: one[0].path)
    if not entries:
        raise fail(
            _("cannot push %(folder)s", folder=folder),
            _("it contains no files"),
            _("verify the path"),
            "E_DATA_FILE",
        )
    manifest = canonical(file for file, _path in entries)
    contents: dict[str, Content] = {file.sha256: Content(file.size, path) for file, path in entries}
    contents[id_of(manifest)] = Content(len(manifest), manifest)
    left_out = tuple(sorted(path.relative_to(folder).as_posix() for path in indices))
    return Pushed(id_of(manifest), tuple(file for file, _path in entries), contents, left_out)


def name_for(folder: Path) -> str:
    """Returns the folder's own name, with the characters replaced that a name cannot have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-._")[:128] or "data"


def _digest_and_size(path: Path) -> tuple[str, int]:
    """Returns the digest and the size of exactly the bytes that were read."""
    digest, piece = hashlib.sha256(), memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            interruption.check()
            digest.update(piece[:count])
        return digest.hexdigest(), file.tell()


def _is_text(place: str) -> bool:
    return place.isprintable() and not any("\ud800" <= letter <= "\udfff" for letter in place)


class Sender:
    def __init__(
        self, api: FileApi, progress: Progress, *, sleep: Callable[[float], None] = interruption.pause
    ) -> None:
        self._api = api
        self._progress = progress
        self._sleep = sleep
        self._lock = Lock()
        self.sent_bytes = 0

    def send(self, pushed: Pushed, name: str) -> dict[str, Any]:
        """Sends what is missing, the manifest last, then names the dataset. Returns what the server says of it."""
        for last in (*[False] * (ROUNDS - 1), True):
            self._send_missing(pushed)
            try:
                answer: dict[str, Any] = self._api.post(
                    "/api/data", {"id": f"sha256:{pushed.id}", "name": name}, timeout_s=SEALING_TIMEOUT_S
                )
            except ClientError as error:
                # What waited too long for its manifest may have been let go meanwhile.
                if last or error.trouble.code != "objects_missing":
                    raise
            else:
                return answer
        raise AssertionError("unreachable")

    def _send_missing(self, pushed: Pushed) -> None:
        missing = self._missing(pushed)
        total = sum(pushed.contents[sha256].size - offset for sha256, offset in missing.items())
        manifest_offset = missing.pop(pushed.id, None)

        def send(one: tuple[str, int]) -> None:
            sha256, offset = one
            self._send(sha256, pushed.contents[sha256], offset, total)

        interruption.side_by_side(send, missing.items(), SENT_AT_ONCE)
        if manifest_offset is not None:
            self._send(pushed.id, pushed.contents[pushed.id], manifest_offset, total)

    def _missing(self, pushed: Pushed) -> dict[str, int]:
        offsets: dict[str, int] = {}
        for some in _batches(pushed.contents.items(), ASKED_AT_ONCE):
            body = {"objects": [{"sha256": sha256, "size": content.size} for sha256, content in some]}
            offsets |= {one["sha256"]: int(one["offset"]) for one in self._api.post(OBJECTS, body)["missing"]}
        return offsets

    def _send(self, sha256: str, content: Content, offset: int, total: int) -> None:
        """Sends part after part, each again while the connection fails; the server says where to go on."""
        pauses = iter(PAUSES_S)
        while True:
            length = min(PART_BYTES, content.size - offset)
            try:
                query = {"offset": offset, "size": content.size}
                pieces = sent(_pieces(content, offset, length), Pace())
                answer = self._api.put_bytes(f"{OBJECTS}/{sha256}", query, pieces, length)
            except httpx2.TransportError as error:
                pause_s = None if is_in_vain(error) else next(pauses, None)
                self._pause(pause_s, unreachable(error, self._api.url))
                continue
            except ClientError as error:
                if error.trouble.code == "digest_mismatch":
                    raise _changed(content) from None
                self._pause(next(pauses, None) if error.trouble.code == "store_unavailable" else None, error)
                continue
            reached, before = int(answer["next_offset"]), offset
            self._sent(max(0, min(reached, offset + length) - offset), total)
            offset = reached
            if answer["complete"]:
                return
            if reached > before:
                pauses = iter(PAUSES_S)
            else:
                self._pause(
                    next(pauses, None), unreachable(httpx2.WriteError(_(KEEPS_NOTHING)), self._api.url)
                )

    def _pause(self, pause_s: float | None, error: ClientError) -> None:
        if pause_s is None:
            raise error
        self._sleep(pause_s)

    def _sent(self, count: int, total: int) -> None:
        with self._lock:
            self.sent_bytes += count
            self._progress("send", count, total)


def _pieces(content: Content, offset: int, length: int) -> Iterator[bytes]:
    if isinstance(content.source, bytes):
        yield content.source[offset : offset + length]
        return
    try:
        with content.source.open("rb") as file:
            file.seek(offset)
            while length:
                piece = file.read(min(PIECE_BYTES, length))
                if not piece:
                    raise _changed(content)
                length -= len(piece)
                yield piece
    except OSError as error:
        raise _unusable(content.source, error.strerror or str(error)) from None


def _batches(items: Iterable[tuple[str, Content]], count: int) -> Iterator[list[tuple[str, Content]]]:
    rest = iter(items)
    while some := list(islice(rest, count)):
        yield some


def _unusable(path: Path, why: str) -> ClientError:
    name = os.fsencode(path).decode("utf-8", "backslashreplace")
    return fail(
        _("cannot push %(path)s", path=name),
        why,
        _("take it out of the folder, or make a copy without it"),
        "E_DATA_FILE",
    )


def _changed(content: Content) -> ClientError:
    return fail(
        _("%(path)s changed while it was being pushed", path=content.source),
        _("the uploaded bytes differ from those read before"),
        _("run the same command again when nobody is writing there"),
        "E_DATA_CHANGED",
    )
