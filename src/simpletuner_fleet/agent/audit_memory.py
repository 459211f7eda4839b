"""Remembers what this worker has seen of the orchestrator's audit log, and reports a log that holds less.

Heads come with registrations and heartbeats. At each registration the orchestrator proves that the log up to those this
worker remembers is part of the log of today; where it cannot, the log was cut off, rewritten, or restored from a copy.
"""

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.merkle import is_consistent
from simpletuner_fleet.protocol.messages import AuditHead

log = logging.getLogger(__name__)

MAX_BYTES = 16 * 1024 * 1024


class Remembered(Struct):
    """Stores one line of the memory file: a head of the audit log, and whether it counts as proven."""

    head: AuditHead
    proven: bool = False


class AuditMemory:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._writer = ThreadPoolExecutor(1, "audit")
        """Heartbeats bring heads, and wait for no disk."""
        self._proven: AuditHead | None = None
        self._newest: AuditHead | None = None
        self._shown: tuple[AuditHead, ...] = ()
        for one in self._read():
            self._take(one)

    def close(self) -> None:
        """Returns when all of it is written down."""
        self._writer.shutdown()

    @property
    def newest(self) -> AuditHead | None:
        return self._newest

    def shown(self) -> list[AuditHead]:
        """Returns the heads that a registration shows: the last that was proven, and the newest."""
        heads = dict.fromkeys(head for head in (self._proven, self._newest) if head)
        self._shown = tuple(heads)
        return list(heads)

    def registered(self, head: AuditHead | None, proofs: Sequence[Sequence[str] | None]) -> bool:
        """Takes the answer of a registration. Returns whether it agrees with all that is remembered."""
        if head is None or not head.signature:
            return True  # an orchestrator that signs no heads
        if not self._shown:
            self._remember(head, proven=True)
            return True
        given = [*proofs, *[None] * len(self._shown)]
        if all(_follows(known, head, proof) for known, proof in zip(self._shown, given, strict=False)):
            self._remember(head, proven=True)
            return True
        log.critical(
            "the orchestrator's audit log does not hold what this worker has seen of it (entry %d): it was cut off, "
            "rewritten or restored from an older copy; tell an administrator to run 'simpletuner audit verify'",
            self._shown[-1].seq,
        )
        return False

    def heard(self, head: AuditHead | None) -> None:
        """Takes the head of a heartbeat, which comes without a proof."""
        if head and head.signature and (self._newest is None or head.seq > self._newest.seq):
            self._remember(head, proven=False)

    def _remember(self, head: AuditHead, *, proven: bool) -> None:
        one = Remembered(head=head, proven=proven)
        if head in (self._newest, self._proven) and not (proven and head != self._proven):
            return
        self._take(one)
        self._writer.submit(self._write_down, msgspec.json.encode(one) + b"\n")

    def _write_down(self, line: bytes) -> None:
        try:
            self._append(line)
        except OSError as error:
            log.warning("what was seen of the audit log could not be written down: %s", error)

    def _take(self, one: Remembered) -> None:
        if self._newest is None or one.head.seq >= self._newest.seq:
            self._newest = one.head
        if one.proven and (self._proven is None or one.head.seq >= self._proven.seq):
            self._proven = one.head

    def _append(self, line: bytes) -> None:
        with suppress(FileNotFoundError):
            if self._file.stat().st_size > MAX_BYTES:
                self._file.replace(self._file.with_suffix(".older"))
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def _read(self) -> list[Remembered]:
        heads = []
        for file in (self._file.with_suffix(".older"), self._file):
            for line in _lines_of(file):
                with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                    heads.append(msgspec.json.decode(line, type=Remembered))
        return heads


def _lines_of(file: Path) -> list[bytes]:
    """Returns none of a file that cannot be read: a worker works without its memory, and says so."""
    try:
        return file.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("what was seen of the audit log before cannot be read in %s: %s", file, error.strerror)
        return []


def _follows(known: AuditHead, head: AuditHead, proof: Sequence[str] | None) -> bool:
    if proof is None:
        return False
    try:
        steps = [bytes.fromhex(step) for step in proof]
        known_root, root = bytes.fromhex(known.root), bytes.fromhex(head.root)
    except ValueError:
        return False
    return is_consistent(known.seq, head.seq, known_root, root, steps)
