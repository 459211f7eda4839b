"""Signs heads of the audit log and writes them down outside the database, so that a change to the database shows."""

import asyncio
import errno
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from simpletuner_fleet.core.audit import LogCut, Problem, Witness, head_text
from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.protocol.messages import AuditHead
from simpletuner_fleet.storage.audit.cutting import AuditCutter
from simpletuner_fleet.storage.audit.thinning import (
    LOOKED_UP_AT_ONCE,
    SpareHead,
    contradicted,
    head_in,
    leave_out,
    spare_heads,
    without_proofs,
)
from simpletuner_fleet.storage.audit.tree import AuditTree, LogIncomplete

log = logging.getLogger(__name__)

SIGNED_EVERY_S = 5.0
MOST_FOREIGN = 1_000
"""So many heads in a row that another key has signed say that ours is new."""
BLOCK_BYTES = 2**16
THINNED_ABOVE_BYTES = 2**25
"""A busy fleet writes so much within a week."""
ALL_KEPT_S = 2 * 86_400.0


def signing_key(path: Path) -> Ed25519PrivateKey:
    """Reads the key, or makes it for its owner alone: whole or not at all, and once if several begin together."""
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        _make_once(path, key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption()))
    return Ed25519PrivateKey.from_private_bytes(path.read_bytes())


def _make_once(path: Path, content: bytes) -> None:
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)


def _lines_from_the_end(file: BinaryIO) -> Iterator[bytes]:
    at, rest = file.seek(0, os.SEEK_END), b""
    while at > 0:
        size = min(BLOCK_BYTES, at)
        at -= size
        file.seek(at)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        yield from reversed(lines)
    yield rest


class AuditHeads:
    """Signs the heads of the audit log.

    It signs the newest head every few seconds, if there is a new one, and appends it to a file that may be copied
    elsewhere.
    """

    def __init__(self, fleet: Fleet, key: Ed25519PrivateKey, file: Path) -> None:
        self._fleet = fleet
        self._key = key
        self._file = file
        self._tree = AuditTree(fleet)
        self.cutter = AuditCutter(fleet, self._as_cuts, self._is_our_cut)
        self._signing = asyncio.Lock()
        self._writing = Lock()
        """Held while the file is changed, also by a thread that outlives whoever waited for it."""
        self._thinned_above_bytes = THINNED_ABOVE_BYTES
        self._task: asyncio.Task[None] | None = None
        self.newest: AuditHead | None = None

    @property
    def public_key(self) -> str:
        return self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    async def start(self) -> None:
        """Compares the log with the last head that was written down: it may have been changed while nothing ran."""
        await self.check_last()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        try:
            await self._sign()
        except Exception as error:  # the next start compares the log with the head before it
            log.warning("the last head of the audit log could not be signed: %s", error)

    async def check_last(self) -> bool:
        """Tells whether the log still holds the newest entry that the file knows.

        If not, that is logged and recorded.
        """
        last = await asyncio.to_thread(self._newest_of_ours)
        if last is None:
            return True
        entries = await self._fleet.read(lambda view: view.audit_range(last.seq - 1, 1))
        if entries and (entries[0].seq, entries[0].hash) == (last.seq, last.hash):
            return True
        log.critical(
            "the audit log was cut off, rewritten or restored from an older copy: entry %d is not as it was; "
            "'simpletuner audit verify' tells more",
            last.seq,
        )
        event = Event(
            type=EventType.AUDIT_CONTRADICTED,
            actor=ORCHESTRATOR,
            target_type="server",
            target_id="",
            details={"seq": last.seq, "hash": last.hash},
        )
        await self._fleet.act(lambda transaction: transaction.record(event))
        return False

    def _newest_of_ours(self) -> AuditHead | None:
        """Returns the head with the highest number that this server signed.

        The file is read from its end: a signature takes a thousand times as long to check as a number to compare.
        """
        newest, foreign = None, 0
        for head in self._read(backwards=True):
            if newest is not None and head.seq <= newest.seq:
                continue
            if self.is_ours(head):
                newest = head
            else:
                foreign += 1
            if newest is None and foreign == MOST_FOREIGN:
                break
        return newest

    async def sign_once(self) -> None:
        """Signs the newest head if there is a new one, and thins the file where it has grown long."""
        await self._sign()
        await self._thin_if_long()

    async def _sign(self) -> None:
        """Signs the head as the running program knows it, never as the database says; a difference is logged."""
        async with self._signing:
            head = self._fleet.audit_head
            if head is None or (self.newest and head.seq <= self.newest.seq):
                return
            try:
                stored = await self._fleet.read(lambda view: view.audit_range(head.seq - 1, 1))
                if not stored or stored[0].hash != head.hash:
                    raise LogIncomplete(f"entry {head.seq} is not the one that was written")
                root = (await self._tree.root(head.seq)).hex()
            except LogIncomplete as error:
                log.critical("the audit log was changed while the server runs: %s", error)
                return
            at = self._fleet.clock.now()
            signature = self._key.sign(head_text(head.seq, head.hash, root, at)).hex()
            signed = AuditHead(seq=head.seq, hash=head.hash, root=root, at=at, signature=signature)
            await asyncio.to_thread(self._append, signed)
            self.newest = signed

    def is_ours(self, head: AuditHead) -> bool:
        """Tells whether this orchestrator signed the head: no other signature proves what this one wrote."""
        try:
            signature = bytes.fromhex(head.signature)
            self._key.public_key().verify(signature, head_text(head.seq, head.hash, head.root, head.at))
        except (InvalidSignature, ValueError):
            return False
        return True

    async def proofs(self, heads: Sequence[AuditHead], newest: AuditHead) -> list[list[str] | None]:
        """Returns for each head the proof that its log is part of the newest head's; None where there cannot be one."""
        return [await self._proof(head, newest) for head in heads]

    async def _proof(self, head: AuditHead, newest: AuditHead) -> list[str] | None:
        if not 0 < head.seq <= newest.seq or not self.is_ours(head):
            return None
        try:
            return [step.hex() for step in await self._tree.proof(head.seq, newest.seq)]
        except LogIncomplete as error:
            log.critical("no proof can be given that the audit log is whole: %s", error)
            return None

    def written(self) -> tuple[list[Witness], list[Problem]]:
        """Returns the heads in the file as witnesses, and a problem for each that this server has not signed."""
        witnesses, problems = [], []
        for head in self._read():
            if self.is_ours(head):
                witnesses.append(Witness("the file of heads", head.seq, head.hash))
            else:
                problems.append(
                    Problem(
                        head.seq, "a head in the file of heads is not signed by this server", "forged_head"
                    )
                )
        return witnesses, problems

    def _as_cuts(self) -> Iterator[LogCut]:
        for head in self._read():
            yield LogCut(head.seq, head.hash, head.root, head.at, head.signature)

    def _is_our_cut(self, cut: LogCut) -> bool:
        return self.is_ours(
            AuditHead(seq=cut.upto, hash=cut.hash, root=cut.root, at=cut.at, signature=cut.signature)
        )

    def _read(self, *, backwards: bool = False) -> Iterator[AuditHead]:
        with suppress(FileNotFoundError), self._file.open("rb") as file:
            for line in _lines_from_the_end(file) if backwards else file:
                if head := head_in(line):
                    yield head

    def _append(self, head: AuditHead) -> None:
        with self._writing:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                # A full disk may have cut off the line before: it must not spoil this one.
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                line = b"\n" * torn + msgspec.json.encode(head) + b"\n"
                if os.write(descriptor, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    async def _thin_if_long(self) -> None:
        if await asyncio.to_thread(self._size) < self._thinned_above_bytes:
            return
        try:
            log.info("%d heads of the audit log were left out of %s", await self._thin(), self._file)
        except OSError as error:
            log.warning("%s cannot be thinned and goes on growing: %s", self._file, error)
        size = await asyncio.to_thread(self._size)
        self._thinned_above_bytes = 2 * max(THINNED_ABOVE_BYTES // 2, size)

    def _size(self) -> int:
        try:
            return self._file.stat().st_size
        except FileNotFoundError:
            return 0

    async def _thin(self) -> int:
        before = self._fleet.clock.now() - ALL_KEPT_S
        spare = await asyncio.to_thread(spare_heads, self._file, before, self.is_ours)
        against_the_log: list[SpareHead] = []
        for start in range(0, len(spare), LOOKED_UP_AT_ONCE):
            some = spare[start : start + LOOKED_UP_AT_ONCE]
            against_the_log += await self._fleet.read(partial(contradicted, heads=some))
        superfluous = without_proofs(spare, against_the_log)
        return await asyncio.to_thread(leave_out, self._file, superfluous, self._writing)

    async def _run(self) -> None:
        while True:
            try:
                await self.sign_once()
                await self.cutter.look()
            except Exception:  # a disk or a database that is away for a while: the next round may do better
                log.exception(
                    "the head of the audit log could not be signed; the next try is in %g s", SIGNED_EVERY_S
                )
            await asyncio.sleep(SIGNED_EVERY_S)
