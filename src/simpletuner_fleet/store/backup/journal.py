"""Keeps the journal of revocations beside the database and not in it: a restored database knows less than it."""

import os
from collections.abc import Iterable
from pathlib import Path

from simpletuner_fleet.core.people.revocations import Revocation, journal_lines, read_lines

JOURNAL_FILE = "revocations.jsonl"
PRIVATE = 0o600


class RevocationJournal:
    """Keeps the file beside the database that lists what was revoked.

    It holds ids and times, no secrets and no hashes of any.
    """

    def __init__(self, path: Path, now: float, seq: int) -> None:
        """Opens the journal. A new one begins now, with the audit log at `seq`."""
        self._path = path
        if not path.exists():
            self.note([Revocation(at=now, seq=seq)])

    def note(self, taken: Iterable[Revocation]) -> None:
        """Writes revocations to the disk before it returns: whoever is told that a token is revoked may rely on it."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            os.write(descriptor, journal_lines(taken))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def newest_at(self) -> float:
        return max((one.at for one in read_journal(self._path)), default=0.0)

    def catch_up(self, known: Iterable[Revocation]) -> None:
        """Notes what the audit log knows and the journal does not: a crash came in between, or another led meanwhile."""
        noted = set(read_journal(self._path))
        missing = [one for one in known if one not in noted]
        if missing:
            self.note(missing)


def read_journal(path: Path) -> list[Revocation]:
    return read_lines(path.read_bytes())
