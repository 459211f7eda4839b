"""Knows which content of a file of output was read: a job can empty its log, and a power cut can cut it short.

A later process goes by the first bytes of the content that was read before it, which stand in a file of their own.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.agent.guard.shim_client import boot_id
from simpletuner_fleet.agent.ship.logs.log_journal import NotedContent
from simpletuner_fleet.agent.state_dir import write_whole

COMPARED_BYTES = 64


class LogHead(Struct, frozen=True):
    """Tells by its first bytes whether a file holds what an earlier process has read."""

    length: int = 0
    digest: str = ""
    """Of these bytes, and not they themselves: a secret may be among them."""
    content: int = 1
    """Which content of the file it is, counted from 1: each emptying begins the next."""
    boot: str = ""
    """Of the machine, when they were read."""

    def is_of(self, file: BinaryIO) -> bool:
        return _digest(file, self.length) == self.digest


class LogHeads:
    """Holds the heads of a stream's files."""

    def __init__(self, file: Path, count: int, boot: str | None = None) -> None:
        self._file = file
        self._boot = boot_id() if boot is None else boot
        self._heads = [LogHead()] * count
        self._is_written = True

    def grow(self, count: int) -> None:
        self._heads += [LogHead()] * count

    def take_up(self, count: int, noted: Mapping[int, NotedContent]) -> None:
        """Reads what an earlier process has written. Of a content before the one that the journal notes it is of no use."""
        self._heads = (_read(self._file) + [LogHead()] * count)[:count]
        for source, (content, _) in noted.items():
            if source < count and self._heads[source].content < content:
                self._heads[source] = LogHead(content=content)

    def content(self, source: int) -> int:
        return self._heads[source].content

    def is_of(self, source: int, file: BinaryIO) -> bool:
        """Returns whether the file still begins as the content that was read."""
        return self._heads[source].is_of(file)

    def was_cut_short(self, source: int, file: BinaryIO) -> bool:
        """Returns whether a file that is shorter than before lacks its end alone: the machine was started anew since.

        While it ran, nobody but the job itself has shortened it.
        """
        head = self._heads[source]
        return bool(head.length) and head.boot != self._boot and head.is_of(file)

    def emptied(self, source: int) -> None:
        """Notes that another content begins, before anything of it is noted elsewhere."""
        self._note(source, LogHead(content=self._heads[source].content + 1))

    def read(self, source: int, file: BinaryIO, reached: int) -> None:
        """Notes the first bytes, as far as the content was read."""
        head, length = self._heads[source], min(reached, COMPARED_BYTES)
        if length > head.length:
            digest = _digest(file, length)
            self._note(source, replace(head, length=length, digest=digest, boot=self._boot))

    def _note(self, source: int, head: LogHead) -> None:
        self._heads[source], self._is_written = head, False
        self.write()

    def write(self) -> None:
        """Writes what a full disk has not taken before. A next process goes on by the length alone without it."""
        if self._is_written:
            return
        with suppress(OSError):
            write_whole(self._file, msgspec.json.encode(self._heads))
            self._is_written = True


def end_at(file: BinaryIO, end: int) -> bytes:
    """Returns the last bytes before this place."""
    file.seek(max(0, end - COMPARED_BYTES))
    return file.read(min(end, COMPARED_BYTES))


def _digest(file: BinaryIO, length: int) -> str:
    file.seek(0)
    return hashlib.sha256(file.read(length)).hexdigest() if length else ""


def _read(file: Path) -> list[LogHead]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[LogHead])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return []
