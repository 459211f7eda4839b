"""Downloads the files of a checkpoint or artifact, verifies their SHA-256, and resumes where it broke off."""

import errno
import hashlib
import os
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal
from urllib.parse import quote

import httpx2
from msgspec import Struct

from simpletuner_fleet.client import interruption
from simpletuner_fleet.client.answers import (
    BYTES,
    NOT_PACKED,
    PAGE,
    content_type_of,
    is_ours,
    is_packed,
)
from simpletuner_fleet.client.calls.sync_driver import unpacking
from simpletuner_fleet.client.errors import ClientError, fail, unreachable
from simpletuner_fleet.client.files.file_api import SENT_ON, FileApi, segment
from simpletuner_fleet.client.time_limits import LimitedClient, Pace, is_in_vain, pieces
from simpletuner_fleet.client.troubles import ForeignAnswer
from simpletuner_fleet.core.training.checkpoint import MAX_SEGMENT_BYTES, NAME, SHA256, path_complaint
from simpletuner_fleet.languages import _
from simpletuner_fleet.protocol.uploads import DIRECT_HEADER

CHUNK_BYTES = 1024 * 1024
READ_TIMEOUT_S = 60.0
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
PART = ".part"
FOUND, PART_FOUND = 200, 206


class RemoteFile(Struct, frozen=True, kw_only=True):
    """Describes one file of one manifest."""

    url: str
    place: str
    """Relative, the manifest's name first."""
    size: int
    sha256: str


def files_to_download(job_id: str, manifests: list[dict[str, Any]]) -> list[RemoteFile]:
    """Returns the files of the manifests. The server is not trusted here: its paths are written to this disk."""
    files = []
    for manifest in manifests:
        base = f"/api/jobs/{segment(job_id)}/artifacts/{segment(str(manifest['id']))}/files"
        name = str(manifest["name"])
        for file in manifest["files"]:
            path, sha256 = str(file["path"]), str(file["sha256"])
            if not NAME.fullmatch(name) or path_complaint(path) or not SHA256.fullmatch(sha256):
                raise fail(
                    _("the server names a file that must not be written"),
                    _("'%(name)s/%(path)s' is not a path inside the folder", name=name, path=path),
                    _("ask the administrator what happened to this job's artifacts"),
                    "E_BAD_PATH",
                )
            files.append(
                RemoteFile(
                    url=f"{base}/{quote(path)}", place=f"{name}/{path}", size=int(file["size"]), sha256=sha256
                )
            )
    return files


class Downloader:
    def __init__(self, api: FileApi, *, sleep: Callable[[float], None] = interruption.pause) -> None:
        self._api = api
        self._sleep = sleep
        self._straight = True
        """Whether files may be read from the storage itself: until that has failed once."""
        self._in_ranges = True
        """Whether a part of a file can be asked for: until one has come packed."""
        self.fetched_bytes = 0

    def to_folder(self, folder: Path, files: list[RemoteFile]) -> None:
        with _reported(folder):
            self._to_folder(folder, files)

    def _to_folder(self, folder: Path, files: list[RemoteFile]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        root = folder.resolve()
        for file in files:
            target = root / file.place
            if not target.parent.resolve().is_relative_to(root) or target.is_symlink():
                raise _link_in_the_way(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not (
                target.is_file() and target.stat().st_size == file.size and digest_of(target) == file.sha256
            ):
                self._to_file(target, file)

    def _to_file(self, target: Path, file: RemoteFile) -> None:
        part = target.with_name(os.fsdecode(os.fsencode(target.name)[: MAX_SEGMENT_BYTES - len(PART)]) + PART)
        with _opened(part, "ab") as out:
            digest = digest_so_far(part)
            if out.tell() > file.size:
                out.truncate(0)
                digest = hashlib.sha256()
            for chunk in self._chunks(file, out.tell()):
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != file.sha256:
            part.unlink()
            raise not_what_it_should_be(file)
        os.replace(part, target)

    def to_archive(self, archive: Path, files: list[RemoteFile]) -> None:
        """Writes one archive, compressed if its name says so; it gets its name only once everything is verified."""
        with _reported(archive):
            self._to_archive(archive, files)

    def _to_archive(self, archive: Path, files: list[RemoteFile]) -> None:
        part = archive.with_name(archive.name + PART)
        packing: Literal["w:gz", "w:"] = "w:gz" if archive.name.endswith((".gz", ".tgz")) else "w:"
        with _opened(part, "wb") as out:
            try:
                with tarfile.open(fileobj=out, mode=packing) as tar:
                    for file in files:
                        entry = tarfile.TarInfo(file.place)
                        entry.size, entry.mode, entry.mtime = file.size, 0o644, int(time.time())
                        tar.addfile(entry, VerifyingReader(self._chunks(file, 0), file))
                out.flush()
                os.replace(part, archive)
            finally:
                part.unlink(missing_ok=True)

    def _chunks(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """Yields a file's bytes; resumes where it broke off, and gives up when several tries in a row bring nothing."""
        at, pauses = start, iter(PAUSES_S)
        while at < file.size:
            try:
                for chunk in filter(None, self._ask(file, at)):
                    at, pauses = at + len(chunk), iter(PAUSES_S)
                    self.fetched_bytes += len(chunk)
                    yield chunk
            except httpx2.TransportError as error:
                # Each piece of a drip begins the pauses anew: the rest would be asked for again for ever.
                pause_s = None if is_in_vain(error) else next(pauses, None)
                if pause_s is None:
                    raise unreachable(error, self._api.url) from None
                self._sleep(pause_s)

    def _ask(self, file: RemoteFile, at: int) -> Iterator[bytes]:
        headers = dict(NOT_PACKED)
        if at and self._in_ranges:
            headers |= {"Range": f"bytes={at}-", "If-Range": f'"{file.sha256}"'}
        if self._straight:
            headers[DIRECT_HEADER] = "yes"
        with self._api.stream(file.url, headers=headers, read_timeout_s=READ_TIMEOUT_S) as answer:
            link = answer.headers.get("location", "") if answer.status_code == SENT_ON else ""
            if not link:
                if not _is_ours(answer, file):
                    raise unreachable(ForeignAnswer(answer.status_code), self._api.url)
                if answer.status_code == PART_FOUND and is_packed(answer.headers):
                    # Nobody knows whether the range is of the file or of what it was packed into.
                    self._in_ranges = False
                    raise httpx2.ReadError(_("the answer ended early"))
                yield from _body(answer, file, at)
                return
        try:
            with (
                LimitedClient(timeout=READ_TIMEOUT_S) as client,
                client.stream("GET", link, headers=NOT_PACKED | _range(at)) as stored,
            ):
                is_page = content_type_of(stored.headers) == PAGE
                if stored.status_code != (206 if at else 200) or is_page or is_packed(stored.headers):
                    raise httpx2.ReadError(f"the storage answers with HTTP {stored.status_code}")
                yield from _body(stored, file, at)
        except (httpx2.TransportError, httpx2.InvalidURL):
            # The server itself brings the rest. What the storage said is not repeated: it may hold the link.
            self._straight = False
            raise httpx2.ReadError(_("the storage cannot be read from here")) from None


@contextmanager
def _reported(place: Path) -> Iterator[None]:
    """Turns what this machine's disk refuses into an error that says where it was to be written."""
    try:
        yield
    except OSError as error:
        file = f"{error.filename}: " if error.filename and error.filename != str(place) else ""
        raise fail(
            _("nothing can be written to %(folder)s", folder=place),
            f"{file}{error.strerror or error}",
            _("choose a folder that you can write to, on a disk with free space:  df -h"),
            "E_FILE",
        ) from None


def _range(at: int) -> dict[str, str]:
    return {"Range": f"bytes={at}-"} if at else {}


def _is_ours(answer: httpx2.Response, file: RemoteFile) -> bool:
    """Tells whether it is this file, as far as can be told so early. A proxy may take the ETag away, or add to it."""
    is_file = answer.status_code in (FOUND, PART_FOUND) and is_ours(answer.headers, BYTES)
    return is_file and file.sha256 in answer.headers.get("etag", file.sha256)


def _body(answer: httpx2.Response, file: RemoteFile, at: int) -> Iterator[bytes]:
    is_whole = answer.status_code != PART_FOUND  # as from a proxy that knows no ranges
    known, left = at if is_whole else 0, file.size - at
    if not _has_length(answer, known + left) or not (is_whole or _begins_at(answer, at)):
        raise httpx2.ReadError(_("the answer ended early"))
    for piece in pieces(_unpacked(answer), READ_TIMEOUT_S, Pace()):
        chunk, known = piece[known:], max(0, known - len(piece))
        yield chunk[:left]
        left -= len(chunk)
        if left <= 0:
            return
    if left:
        raise httpx2.ReadError(_("the answer ended early"))


def _unpacked(answer: httpx2.Response) -> Iterator[bytes]:
    """Yields the bytes as they were before a proxy packed them. What cannot be unpacked is asked for again."""
    with unpacking():
        yield from answer.iter_bytes()


def _has_length(answer: httpx2.Response, length: int) -> bool:
    promised = answer.headers.get("content-length")
    return promised is None or is_packed(answer.headers) or promised == str(length)


def _begins_at(answer: httpx2.Response, at: int) -> bool:
    return answer.headers.get("content-range", "").startswith(f"bytes {at}-")


class VerifyingReader:
    """Reads a stream, and raises an error at its end if the content does not have the expected SHA-256."""

    def __init__(self, chunks: Iterator[bytes], file: RemoteFile) -> None:
        self._chunks, self._file = chunks, file
        self._digest = hashlib.sha256()
        self._chunk, self._at = b"", 0
        self._left = file.size

    def read(self, size: int = -1) -> bytes:
        size = self._left if size < 0 else size
        pieces = []
        while size and self._left:
            if self._at == len(self._chunk):
                self._chunk, self._at = next(self._chunks), 0
            piece = self._chunk[self._at : self._at + size]
            self._at += len(piece)
            self._left -= len(piece)
            size -= len(piece)
            self._digest.update(piece)
            pieces.append(piece)
        if not self._left and self._digest.hexdigest() != self._file.sha256:
            raise not_what_it_should_be(self._file)
        return b"".join(pieces)


def _opened(part: Path, mode: Literal["ab", "wb"]) -> BinaryIO:
    """Opens a file that is not finished; raises where a link in its place leads elsewhere."""

    def of_its_own(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666)

    try:
        return open(part, mode, opener=of_its_own)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _link_in_the_way(part) from None


def _link_in_the_way(target: Path) -> ClientError:
    return fail(
        _("%(target)s would be written outside the folder", target=target),
        _("a symbolic link is in the way"),
        _("choose another folder with --to"),
        "E_BAD_PATH",
    )


def digest_so_far(path: Path) -> Any:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            interruption.check()
            digest.update(chunk)
    return digest


def digest_of(path: Path) -> str:
    return str(digest_so_far(path).hexdigest())


def not_what_it_should_be(file: RemoteFile) -> ClientError:
    return fail(
        _("%(place)s arrived corrupted", place=file.place),
        _("its SHA-256 is not the one it was stored with"),
        _("run the same command again"),
        "E_DIGEST",
    )
