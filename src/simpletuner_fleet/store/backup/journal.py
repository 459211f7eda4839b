"""The journal of what was taken away, beside the database and not in it: an older database knows less than it."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from simpletuner_fleet.core.people.revocations import UNREADABLE, Revocation, stamped

JOURNAL_FILE = "revocations.jsonl"
PRIVATE = 0o600


class RevocationJournal:
    """Holds ids and times, no secrets and no hashes of any."""

    def __init__(self, path: Path, now: float) -> None:
        self._path = path
        if not path.exists():
            self._append([Revocation(at=now)])

    def note(self, taken: Iterable[Revocation]) -> None:
        """On the disk before it returns: whoever is noted that a token is revoked may rely on it."""
        self._append(stamped(taken, time.time()))

    def _append(self, revocations: Iterable[Revocation]) -> None:
        # A line that a crash has cut off must not take the next one with it.
        lines = b"\n" + b"".join(msgspec.json.encode(one) + b"\n" for one in revocations)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            os.write(descriptor, lines)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_journal(path: Path) -> list[Revocation]:
    """A last line that was cut off by a crash was never answered for; any other that cannot be read is told as such."""
    content = path.read_bytes()
    *lines, last = content.split(b"\n")
    noted = [_read(line) for line in lines if line]
    return [*noted, *(one for one in [_read(last)] if last and one.event != UNREADABLE)]


def _read(line: bytes) -> Revocation:
    try:
        return msgspec.json.decode(line, type=Revocation)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Revocation(at=0.0, event=UNREADABLE)
