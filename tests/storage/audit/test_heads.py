"""The heads of the audit log, and the key that signs them."""

import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Thread
from typing import cast

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec.structs import replace

from simpletuner_fleet.core.audit import head_text
from simpletuner_fleet.protocol.messages import AuditHead
from simpletuner_fleet.queries import audit_log
from simpletuner_fleet.storage.audit import heads
from simpletuner_fleet.storage.audit.heads import MOST_FOREIGN, AuditHeads, signing_key
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.http.api_kit import Running, orchestrator

FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from simpletuner_fleet.storage.audit.heads import signing_key

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    signing_key(Path(sys.argv[1]))
except OSError:
    print("full")
"""
PROCESSES = 8


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def test_the_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.key"
    made = signing_key(path)
    assert public(signing_key(path)) == public(made)
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["audit.key"]


def test_a_full_disk_leaves_no_key_and_the_next_start_makes_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.key"
    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "full"
    assert os.listdir(tmp_path) == []
    assert len(public(signing_key(path))) == 32


def test_all_who_begin_together_have_one_key(tmp_path: Path) -> None:
    path, together = tmp_path / "audit.key", Barrier(PROCESSES)

    def begin(_: int) -> bytes:
        together.wait()
        return public(signing_key(path))

    with ThreadPoolExecutor(PROCESSES) as threads:
        assert len(set(threads.map(begin, range(PROCESSES)))) == 1
    assert os.listdir(tmp_path) == ["audit.key"]


class CountedKey:
    """A key that counts how often a signature is compared with it."""

    def __init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.compared = 0

    def public_key(self) -> Ed25519PublicKey:
        self.compared += 1
        return self.key.public_key()

    def head(self, seq: int, of: str = "aa") -> AuditHead:
        signature = self.key.sign(head_text(seq, of, of, 1.0)).hex()
        return AuditHead(seq=seq, hash=of, root=of, at=1.0, signature=signature)

    def heads(self, running: Running, file: Path) -> AuditHeads:
        return AuditHeads(running.fleet, cast(Ed25519PrivateKey, self), file)


def write_heads(file: Path, heads: Iterable[AuditHead]) -> None:
    file.write_bytes(b"".join(msgspec.json.encode(head) + b"\n" for head in heads))


async def contradicted(running: Running) -> list[int]:
    entries = (await running.get("/api/audit", event_type="server.audit_contradicted"))["entries"]
    return [entry["details"]["seq"] for entry in entries]


async def test_of_very_many_heads_only_the_newest_is_compared_with_the_key(tmp_path: Path) -> None:
    key, file = CountedKey(), tmp_path / "heads"
    old = key.head(1)
    write_heads(file, [*(replace(old, seq=seq) for seq in range(1, 2_000)), key.head(2_000)])
    async with orchestrator() as running:
        assert not await key.heads(running, file).check_last()
        assert await contradicted(running) == [2_000]
    assert key.compared == 1


async def test_a_head_from_before_a_restore_counts_though_later_ones_have_lower_numbers(
    tmp_path: Path,
) -> None:
    key, file = CountedKey(), tmp_path / "heads"
    write_heads(file, [key.head(seq) for seq in (700, 900, 500, 501)])
    async with orchestrator() as running:
        assert not await key.heads(running, file).check_last()
        assert await contradicted(running) == [900]


async def test_heads_that_another_key_has_signed_say_nothing(tmp_path: Path) -> None:
    key, other, file = CountedKey(), CountedKey(), tmp_path / "heads"
    async with orchestrator() as running:
        write_heads(file, [other.head(seq) for seq in (700, 900)])
        assert await key.heads(running, file).check_last()
        write_heads(file, [key.head(600), other.head(900)])
        assert not await key.heads(running, file).check_last()
        assert await contradicted(running) == [600]
        write_heads(file, [other.head(900)] * (2 * MOST_FOREIGN))
        key.compared = 0
        assert await key.heads(running, file).check_last()
        assert key.compared == MOST_FOREIGN


async def test_a_line_that_a_bad_disk_has_spoiled_is_passed_over(tmp_path: Path) -> None:
    key, file = CountedKey(), tmp_path / "heads"
    write_heads(file, [key.head(700), key.head(900)])
    file.write_bytes(file.read_bytes() + b'{"seq":901,"hash":"\xff\xfe"}\n\x00\x00\n')
    async with orchestrator() as running:
        assert not await key.heads(running, file).check_last()
        assert await contradicted(running) == [900]


async def test_the_file_of_heads_does_not_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "THINNED_ABOVE_BYTES", 10_000, raising=False)
    key, file = CountedKey(), tmp_path / "heads"
    write_heads(file, [key.head(seq) for seq in range(1000, 1200)])
    async with orchestrator() as running:
        ours = AuditHeads(running.fleet, key.key, file)
        await running.create_worker()
        await ours.sign_once()
        assert ours.newest is not None
        witnesses, problems = ours.written()
    assert ([witness.seq for witness in witnesses], problems) == ([1199, ours.newest.seq], [])


async def test_a_line_that_a_full_disk_has_cut_off_spoils_no_later_one(tmp_path: Path) -> None:
    key, file = Ed25519PrivateKey.generate(), tmp_path / "heads"
    file.write_bytes(b'{"seq":1,"hash":"a')
    async with orchestrator() as running:
        ours = AuditHeads(running.fleet, key, file)
        await running.create_worker()
        await ours.sign_once()
        assert ours.newest is not None
        assert [witness.seq for witness in ours.written()[0]] == [ours.newest.seq]
        assert file.read_bytes().count(b"\n") == 2


async def contradictions(running: Running, ours: AuditHeads) -> list[int]:
    problems = (await audit_log.verify(running.fleet, ours)).problems
    return [problem.seq for problem in problems if problem.code == "contradicted"]


async def test_a_head_that_the_log_contradicts_goes_on_saying_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "THINNED_ABOVE_BYTES", 1_000)
    key, file = CountedKey(), tmp_path / "heads"
    async with orchestrator() as running:
        for number in range(4):
            await running.token("jobs.read", name=f"token {number}")
        entries = await running.fleet.read(lambda view: view.audit_range(0, 4))
        true = [key.head(entry.seq, of=entry.hash) for entry in entries]
        # Within an hour the log was changed, and had grown beyond all that is contradicted when it was signed again.
        write_heads(file, [true[0], key.head(2, of="22"), key.head(3, of="33"), true[3]])
        ours = AuditHeads(running.fleet, key.key, file)
        assert await contradictions(running, ours) == [2, 3]
        await ours.sign_once()
        assert ours.newest is not None
        assert [witness.seq for witness in ours.written()[0]] == [3, 4, ours.newest.seq]
        assert await contradictions(running, ours) == [3]


async def test_a_head_that_is_written_while_the_file_is_thinned_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "THINNED_ABOVE_BYTES", 1_000)
    key, file = CountedKey(), tmp_path / "heads"
    write_heads(file, [key.head(seq) for seq in range(1000, 1020)])
    async with orchestrator() as running:
        await running.create_worker()
        ours = AuditHeads(running.fleet, key.key, file)
        other = Thread(target=ours._append, args=(key.head(2000),))
        replaces = os.replace

        def meanwhile(draft: str, place: Path) -> None:
            other.start()
            other.join(0.3)  # it may have to wait for us
            replaces(draft, place)

        monkeypatch.setattr("os.replace", meanwhile)
        await ours.sign_once()
        other.join()
        assert ours.newest is not None
        assert {witness.seq for witness in ours.written()[0]} == {1019, 2000, ours.newest.seq}


async def test_a_server_whose_store_is_away_ends_without_a_last_head(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "fleet.db")
    async with orchestrator(store) as running:
        await running.create_worker()
        ours = AuditHeads(running.fleet, Ed25519PrivateKey.generate(), tmp_path / "heads")
        await store.close()
        await ours.stop()
        assert ours.newest is None
