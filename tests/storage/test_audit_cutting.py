"""Old entries of the audit log lose all but their hash, and the log can still be checked, by us and by every worker."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from simpletuner_fleet.core import merkle
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.ports import Store
from simpletuner_fleet.protocol.messages import AuditHead
from simpletuner_fleet.queries import audit_log
from simpletuner_fleet.storage.audit.heads import AuditHeads
from simpletuner_fleet.store import MemoryStore
from simpletuner_fleet.store.postgres import PostgresStore
from simpletuner_fleet.store.sealing import SealedVault
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.http.api_kit import Running, orchestrator
from tests.ready_databases import lay_sqlite

DAY_S = 86_400.0
KEPT = Policy(audit_keep_days=30)


async def signed(running: Running, heads: AuditHeads, names: str, count: int = 3) -> AuditHead:
    for number in range(count):
        await running.token("jobs.read", name=f"{names}-{number}")
    await heads.sign_once()
    assert heads.newest is not None
    return heads.newest


async def codes(running: Running, heads: AuditHeads) -> list[str]:
    return [one.code for one in (await audit_log.verify(running.fleet, heads)).problems]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
async def test_what_was_kept_long_enough_goes_and_the_rest_is_verified_from_there(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    store: Store
    match kind:
        case "memory":
            store = MemoryStore()
        case "sqlite":
            store = SqliteStore(lay_sqlite(tmp_path / "fleet.db"))
        case _:
            store = PostgresStore(request.getfixturevalue("ready_database"))
    async with orchestrator(store, KEPT) as running:
        heads = AuditHeads(running.fleet, Ed25519PrivateKey.generate(), tmp_path / "heads")
        running.deps.audit_heads = heads
        old = await signed(running, heads, "secret", 300)
        running.clock.at += 31 * DAY_S
        await signed(running, heads, "young")
        total = (await running.get("/api/audit"))["total"]

        assert await heads.cutter.look() == old.seq
        newest = await signed(running, heads, "later")
        verdict = await running.get("/api/audit/verify")
        assert (verdict["valid"], verdict["emptied"], verdict["problems"]) == (True, old.seq, [])
        assert verdict["checked"] == newest.seq - old.seq
        page = await running.get("/api/audit", limit=1000)
        assert page["total"] == len(page["entries"]) == total - old.seq + 4, "three later ones, and the cut"
        assert (await running.get("/api/audit/stats"))["total"] == page["total"]
        assert {one["id"] for one in page["entries"]} == set(range(old.seq + 1, newest.seq + 1))
        exported = (await running.http.get("/api/audit/export")).text
        assert "secret-1" not in exported
        assert "young-1" in exported
        (cut,) = (await running.get("/api/audit", event_type="server.audit_cut"))["entries"]
        assert (cut["details"]["upto"], cut["details"]["signature"]) == (old.seq, old.signature)

        (steps,) = await heads.proofs([old], newest)
        assert steps is not None
        assert merkle.is_consistent(
            *(old.seq, newest.seq, bytes.fromhex(old.root), bytes.fromhex(newest.root)),
            [bytes.fromhex(step) for step in steps],
        )
        anew = AuditHeads(running.fleet, heads._key, tmp_path / "heads")
        assert await anew.check_last()
        assert await anew.cutter.look() == 0
        running.clock.at += 31 * DAY_S
        assert await anew.cutter.look() == 3, "up to the head before the newest: the newest entry stays"
        assert await codes(running, anew) == []
    await store.close()


async def test_an_entry_that_somebody_is_still_to_be_told_of_stays(tmp_path: Path) -> None:
    vault = SealedVault.at(tmp_path / "key")
    async with orchestrator(None, KEPT, vault=vault) as running:
        heads = AuditHeads(running.fleet, Ed25519PrivateKey.generate(), tmp_path / "heads")
        first = await signed(running, heads, "before")
        body = {"name": "siem", "channel": "webhook", "address": "https://192.0.2.1/x", "events": ["audit"]}
        made = (await running.post("/api/notifications", body))["endpoint"]
        await signed(running, heads, "untold")
        running.clock.at += 31 * DAY_S
        assert await heads.cutter.look() == first.seq
        await running.post(f"/api/notifications/{made['id']}/pause")
        running.clock.at += 3601
        assert await heads.cutter.look() > 0, "a paused one is not waited for"


async def test_who_empties_more_by_hand_is_found(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "fleet.db")
    async with orchestrator(store, KEPT) as running:
        heads = AuditHeads(running.fleet, Ed25519PrivateKey.generate(), tmp_path / "heads")
        old = await signed(running, heads, "old")
        running.clock.at += 31 * DAY_S
        await signed(running, heads, "young")
        await heads.cutter.look()
        await signed(running, heads, "later")

        async def codes_after(change: str, seq: int) -> list[str]:
            with closing(sqlite3.connect(tmp_path / "fleet.db")) as db:
                before = db.execute("SELECT * FROM audit WHERE seq = ?", (seq,)).fetchone()
                db.execute(f"UPDATE audit SET {change} WHERE seq = ?", (seq,))
                db.commit()
                problems = await codes(running, heads)
                db.execute(f"REPLACE INTO audit VALUES ({', '.join('?' * len(before))})", before)
                db.commit()
            return problems

        empty = "event_type = '', actor_id = '', actor_name = '', ip = '', target_type = '', target_id = '', details = '{}'"
        assert await codes_after(empty, old.seq + 1) == ["emptied"]
        assert await codes_after(empty, old.seq + 2) == ["changed"], "one in the middle"
        assert "cut_changed" in await codes_after(f"hash = '{'0' * 64}'", old.seq - 1)
        assert "emptied" in await codes_after(f"hash = '{'0' * 64}'", old.seq)
        assert "changed" in await codes_after("actor_name = 'somebody else'", old.seq - 1), (
            "what was emptied cannot be filled with something else"
        )
        assert await codes(running, heads) == []
    await store.close()


async def test_without_the_setting_nothing_goes(tmp_path: Path) -> None:
    async with orchestrator() as running:
        heads = AuditHeads(running.fleet, Ed25519PrivateKey.generate(), tmp_path / "heads")
        await signed(running, heads, "old")
        running.clock.at += 10_000 * DAY_S
        assert await heads.cutter.look() == 0
