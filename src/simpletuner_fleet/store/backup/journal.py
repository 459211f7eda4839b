"""The journal of what was taken away, beside the database and not in it: an older database knows less than it."""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from simpletuner_fleet.core.people.revocations import Revocation

JOURNAL_FILE = "revocations.jsonl"
PRIVATE = 0o600


class RevocationJournal:
    """Holds ids and times, no secrets and no hashes of any."""

    def __init__(self, path: Path, now: float) -> None:
        self._path = path
        if not path.exists():
            self.note([Revocation(at=now)])

    def note(self, taken: Iterable[Revocation]) -> None:
        """On the disk before it returns: whoever is noted that a token is revoked may rely on it."""
        lines = b"".join(msgspec.json.encode(one) + b"\n" for one in taken)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            os.write(descriptor, lines)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_journal(path: Path) -> list[Revocation]:
    """A last line that was cut off by a crash was never answered for."""
    noted = []
    for line in path.read_bytes().splitlines():
        try:
            noted.append(msgspec.json.decode(line, type=Revocation))
        except msgspec.MsgspecError:
            continue
    return noted
