"""The journal of revocations that all servers share: whichever leads goes on with it, and none of it is lost."""

import asyncio
import threading
from pathlib import Path

import pytest

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.people import revocations
from simpletuner_fleet.core.people.revocations import BackupMoment, Revocation, joined, withdrawn_since
from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.storage import shared_journal
from simpletuner_fleet.storage.shared_journal import SharedJournal, read_shared_journal
from tests.delivery.receivers import until
from tests.http.api_kit import Running, orchestrator


class AwayBlobs(MemoryBlobs):
    away = False

    async def put_mark(self, content: bytes, name: str = "fleet.json") -> None:
        if self.away:
            raise StoreUnavailable("The storage is away.")
        await super().put_mark(content, name)


async def begun(running: Running, blobs: Blobs) -> SharedJournal:
    journal = SharedJournal(running.fleet, blobs)
    await journal.start()
    running.fleet.share_revoked = journal.note
    return journal


async def revoke_one(running: Running, name: str) -> str:
    made = await running.post("/api/admin/tokens", {"name": name, "permissions": ["jobs.read"]})
    assert (await running.http.delete(f"/api/admin/tokens/{made['id']}")).status_code == 200
    return str(made["id"])


async def seq_of(running: Running) -> int:
    head = await running.fleet.read(lambda view: view.audit_head())
    return head.seq if head else 0


async def withdrawn_tokens(blobs: Blobs, seq: int) -> frozenset[str]:
    noted = await read_shared_journal(blobs)
    assert noted is not None
    withdrawn = withdrawn_since(BackupMoment(0.0, seq), noted)
    assert not withdrawn.everything
    return withdrawn.tokens


async def test_what_one_leader_noted_and_what_it_could_not_is_there_under_the_next() -> None:
    blobs = AwayBlobs()
    async with orchestrator() as running:
        began = await seq_of(running)
        first = await begun(running, blobs)
        running.clock.at += 10
        noted = await revoke_one(running, "noted")
        assert await withdrawn_tokens(blobs, began) == {noted}
        blobs.away = True
        running.clock.at += 10
        missed = await revoke_one(running, "missed")
        assert await withdrawn_tokens(blobs, began) == {noted}, "and the revocation did not wait for it"
        await first.stop()
        running.fleet.share_revoked, blobs.away = None, False
        second = await begun(running, blobs)
        assert await withdrawn_tokens(blobs, began) == {noted, missed}, "the audit log had it"
        await second.stop()


async def test_a_journal_that_fell_behind_is_written_once_the_storage_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_journal, "RETRY_S", 0.01)
    blobs = AwayBlobs()
    async with orchestrator() as running:
        journal, began = await begun(running, blobs), await seq_of(running)
        blobs.away = True
        missed = await revoke_one(running, "missed")
        blobs.away = False
        async with asyncio.timeout(10):
            while missed not in await withdrawn_tokens(blobs, began):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await journal.stop()


async def test_a_journal_that_begins_now_does_not_say_that_it_knows_the_past() -> None:
    blobs = MemoryBlobs()
    async with orchestrator() as running:
        before = await seq_of(running)
        await revoke_one(running, "before")
        journal = await begun(running, blobs)
        noted = await read_shared_journal(blobs)
        assert noted == [Revocation(at=running.clock.at, seq=await seq_of(running))]
        assert withdrawn_since(BackupMoment(0.0, before), noted).everything
        await journal.stop()


def test_a_very_long_journal_loses_its_oldest_part_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocations, "MOST_LINES", 100)
    lines = [Revocation(at=0.0, seq=0)]
    lines += [
        Revocation(at=1.0, event=EventType.TOKEN_REVOKED, id=f"t_{at}", seq=at)
        for at in range(1, revocations.MOST_LINES + 1)
    ]
    shorter = joined(lines, [])
    assert len(shorter) < len(lines)
    begin = shorter[0].seq or 0
    assert withdrawn_since(BackupMoment(1.0, begin - 1), shorter).everything
    kept = withdrawn_since(BackupMoment(1.0, begin), shorter)
    assert not kept.everything
    assert kept.tokens == {f"t_{at}" for at in range(begin + 1, revocations.MOST_LINES + 1)}


class FrozenFolder(FolderBlobs):
    """A network folder that hangs once, and does what it was told when it is back."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.freezes, self.thaws = False, threading.Event()

    def _put_mark(self, name: str, content: bytes) -> None:
        if self.freezes:
            self.freezes = False
            self.thaws.wait(20)
        super()._put_mark(name, content)


async def test_a_write_that_hung_replaces_nothing_that_was_noted_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_journal, "WRITTEN_WITHIN_S", 0.05)
    monkeypatch.setattr(shared_journal, "RETRY_S", 0.01)
    blobs = FrozenFolder(tmp_path / "storage")
    async with orchestrator() as running:
        began = await seq_of(running)
        journal = await begun(running, blobs)
        running.clock.at += 10
        blobs.freezes = True
        withdrawn = {await revoke_one(running, "while it hangs"), await revoke_one(running, "and after that")}
        blobs.thaws.set()
        await until(lambda: not journal._writing.locked() and not journal._unwritten.is_set())
        await journal.stop()
        blobs.close()
        stored = FolderBlobs(tmp_path / "storage")
        assert await withdrawn_tokens(stored, began) == withdrawn
        stored.close()


async def test_a_write_of_the_leader_before_that_hung_takes_nothing_of_the_journal_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_journal, "WRITTEN_WITHIN_S", 0.05)
    hanging, blobs = FrozenFolder(tmp_path / "storage"), FolderBlobs(tmp_path / "storage")
    async with orchestrator() as running:
        began = await seq_of(running)
        deposed = await begun(running, hanging)
        running.clock.at += 10
        hanging.freezes = True
        withdrawn = {await revoke_one(running, "while it hangs")}
        await deposed.stop()
        leads = await begun(running, blobs)
        running.clock.at += 10
        withdrawn.add(await revoke_one(running, "under the next leader"))
        assert await withdrawn_tokens(blobs, began) == withdrawn
        hanging.thaws.set()
        hanging.close()
        assert await withdrawn_tokens(blobs, began) != withdrawn, "nothing can keep it from writing"
        await leads.write_if_behind()
        assert await withdrawn_tokens(blobs, began) == withdrawn
        await leads.stop()
    blobs.close()
