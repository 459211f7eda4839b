"""Somebody with hands in the database: they change the audit log and make it look whole again."""

import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from simpletuner_fleet.agent.audit_memory import AuditMemory
from simpletuner_fleet.core import merkle
from simpletuner_fleet.core.audit import GENESIS, AuditEntry, ChainCheck, Witness, entry_hash
from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.protocol.messages import AuditHead
from simpletuner_fleet.queries import audit_log
from simpletuner_fleet.storage.audit.heads import AuditHeads
from simpletuner_fleet.storage.audit.tree import BLOCK, AuditTree
from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.http.api_kit import Running, orchestrator

Entries = list[AuditEntry]
TAMPERINGS = 2_000
LENGTH = 60


def chained(entries: Entries) -> Entries:
    """The log with every hash made anew: whole, as far as it alone can tell."""
    previous, whole = GENESIS, []
    for seq, entry in enumerate(entries, 1):
        numbered = replace(entry, seq=seq)
        previous = entry_hash(numbered, previous)
        whole.append(replace(numbered, hash=previous))
    return whole


def honest_log(length: int = LENGTH) -> Entries:
    return chained(
        [
            AuditEntry(
                0, 1e9 + at, "job.submitted", f"u_{at % 5}", "alice", "10.0.0.1", "job", f"j_{at}", {"n": at}
            )
            for at in range(length)
        ]
    )


def changed_column(entries: Entries, dice: random.Random) -> Entries:
    at = dice.randrange(len(entries))
    column = dice.choice(
        ["at", "event_type", "actor_id", "actor_name", "ip", "target_type", "target_id", "details", "hash"]
    )
    new = {"at": dice.random(), "details": {"n": dice.random()}, "hash": f"{dice.getrandbits(256):064x}"}.get(
        column, f"forged {dice.random()}"
    )
    return [*entries[:at], replace(entries[at], **{column: new}), *entries[at + 1 :]]


def removed(entries: Entries, dice: random.Random) -> Entries:
    at = dice.randrange(len(entries))
    return [*entries[:at], *entries[at + 1 :]]


def inserted(entries: Entries, dice: random.Random) -> Entries:
    at = dice.randrange(len(entries))
    return [*entries[:at], replace(dice.choice(entries), target_id="forged"), *entries[at:]]


def swapped(entries: Entries, dice: random.Random) -> Entries:
    one, other = sorted(dice.sample(range(len(entries)), 2))
    mixed = list(entries)
    mixed[one], mixed[other] = mixed[other], mixed[one]
    return mixed


def cut_off(entries: Entries, dice: random.Random) -> Entries:
    return entries[: dice.randrange(len(entries))]


def forked(entries: Entries, dice: random.Random) -> Entries:
    """Restored from an older copy, then gone on with."""
    kept = dice.randrange(len(entries))
    return [
        *entries[:kept],
        *(replace(entry, target_id=f"other {dice.random()}") for entry in entries[kept:]),
    ]


KINDS: tuple[Callable[[Entries, random.Random], Entries], ...] = (
    *(changed_column, removed, inserted, swapped, cut_off, forked),
)


def test_every_one_of_two_thousand_tamperings_is_found() -> None:
    dice = random.Random(20261115)
    honest = honest_log()
    heads = [Witness("the file of heads", entry.seq, entry.hash) for entry in (*honest[::17], honest[-1])]
    check = ChainCheck(heads)
    check.feed(honest)
    assert check.finish() == [], "an honest log is whole"
    seen = 0
    for number in range(TAMPERINGS):
        tampered = KINDS[number % len(KINDS)](honest, dice)
        if number % 2:
            tampered = chained(tampered)  # the attacker knows how the chain is made
        if tampered == honest:
            seen += 1  # two equal rows were swapped, or none was left out: nothing was done
            continue
        check = ChainCheck(heads)
        check.feed(tampered)
        seen += bool(check.finish())
    assert seen == TAMPERINGS


def test_a_worker_alone_finds_every_fork_and_truncation_by_the_tree(tmp_path: Path) -> None:
    """No help of the server is needed: it cannot give a proof that holds."""
    dice = random.Random(7)
    honest = honest_log(40)

    def head_of(entries: Entries) -> AuditHead:
        root = merkle.root_of([merkle.leaf(entry.hash) for entry in entries])
        return AuditHead(seq=len(entries), hash=entries[-1].hash, root=root.hex(), at=1.0, signature="ff")

    def proof(entries: Entries, earlier: int) -> list[str]:
        leaves = [merkle.leaf(entry.hash) for entry in entries]
        steps = merkle.consistency_proof(
            earlier, len(entries), lambda start, end: merkle.root_of(leaves[start:end])
        )
        return [step.hex() for step in steps]

    for number in range(200):
        file = tmp_path / f"{number}.jsonl"
        memory = AuditMemory(file)
        memory.shown()
        seen = honest[: dice.randrange(5, 30)]
        assert memory.registered(head_of(seen), [])
        memory.close()
        again = AuditMemory(file)
        assert [head.seq for head in again.shown()] == [len(seen)], "it is on the disk"
        assert again.registered(head_of(honest), [proof(honest, len(seen))])
        again.close()
        liar = AuditMemory(file)
        shown = liar.shown()
        fork = chained(forked(honest, random.Random(number)))[
            : dice.randrange(len(honest) - 5, len(honest)) + 1
        ]
        longer = chained([*fork, *honest_log(10)])
        if longer[: len(honest)] == honest:
            continue
        assert not liar.registered(head_of(longer), [proof(longer, head.seq) for head in shown])
        assert not liar.registered(head_of(honest[:3]), [None])
        assert AuditMemory(file).newest == head_of(honest), "and it does not forget"


async def grow(running: Running, count: int) -> None:
    event = Event(type=EventType.CONFIG_SAVED, actor=ORCHESTRATOR, target_type="config", target_id="c")
    for _ in range(count):
        await running.fleet.act(lambda transaction: transaction.record(event))


async def test_the_tree_from_the_rows_is_the_tree() -> None:
    async with orchestrator() as running:
        await grow(running, 2 * BLOCK + 37)
        entries = await running.fleet.read(lambda view: view.audit_range(0, 10_000))
        leaves = [merkle.leaf(entry.hash) for entry in entries]
        tree = AuditTree(running.fleet)
        for size in (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, len(leaves)):
            assert await tree.root(size) == merkle.root_of(leaves[:size]), size
        for earlier in (1, 3, BLOCK, BLOCK + 5, len(leaves)):
            steps = await tree.proof(earlier, len(leaves))
            assert merkle.is_consistent(
                earlier, len(leaves), merkle.root_of(leaves[:earlier]), merkle.root_of(leaves), steps
            )


async def test_heads_are_signed_and_a_head_that_nobody_signed_is_no_witness(tmp_path: Path) -> None:
    async with orchestrator() as running:
        heads = AuditHeads(running.fleet, Ed25519PrivateKey.generate(), tmp_path / "heads")
        running.fleet.signed_heads = heads
        await heads.sign_once()
        signed = heads.newest
        assert signed is not None
        assert heads.is_ours(signed)
        assert not heads.is_ours(replace(signed, seq=signed.seq + 1))
        agent = await running.worker()
        reported = (await agent.heartbeat())["audit_head"]
        assert reported["signature"] == signed.signature
        forged = {**reported, "seq": 10_000}
        await agent.heartbeat(audit_head=forged)
        verdict = await audit_log.verify(running.fleet, heads)
        assert (verdict.checked, verdict.problems) == (await checked(running), []), "no false alarm"
        with (tmp_path / "heads").open("a") as file:
            file.write(json.dumps(forged) + "\n")
        problems = (await audit_log.verify(running.fleet, heads)).problems
        assert [problem.code for problem in problems] == ["forged_head"]


async def checked(running: Running) -> int:
    head = await running.fleet.read(lambda view: view.audit_head())
    assert head is not None
    return head.seq


async def test_a_worker_is_given_a_proof_at_each_connection(tmp_path: Path) -> None:
    async with orchestrator() as running:
        heads = AuditHeads(running.fleet, Ed25519PrivateKey.generate(), tmp_path / "heads")
        running.fleet.signed_heads = heads
        await heads.sign_once()
        agent = await running.worker()
        first = (await agent.register())["audit_head"]
        await grow(running, 30)
        await heads.sign_once()
        answer = await agent.register(audit_heads=[first])
        (steps,) = answer["audit_proofs"]
        old, new = first, answer["audit_head"]
        assert new["seq"] > old["seq"]
        assert merkle.is_consistent(
            old["seq"],
            new["seq"],
            bytes.fromhex(old["root"]),
            bytes.fromhex(new["root"]),
            [bytes.fromhex(step) for step in steps],
        )


def rewrite_all(database: Path) -> None:
    """Says that somebody else did it, from the third entry on, and makes the whole chain anew."""
    with sqlite3.connect(database) as db:
        names = [row[1] for row in db.execute("PRAGMA table_info(audit)")]
        rows = [dict(zip(names, row, strict=True)) for row in db.execute("SELECT * FROM audit ORDER BY seq")]
        entries = [
            AuditEntry(
                row["seq"],
                row["at"],
                row["event_type"],
                row["actor_id"],
                "nobody" if row["seq"] >= 3 else row["actor_name"],
                row["ip"],
                row["target_type"],
                row["target_id"],
                json.loads(row["details"]),
            )
            for row in rows
        ]
        for entry in chained(entries):
            db.execute(
                "UPDATE audit SET actor_name = ?, hash = ? WHERE seq = ?",
                (entry.actor_name, entry.hash, entry.seq),
            )


@pytest.mark.e2e
@pytest.mark.parametrize("witness", ["the file", "a worker"])
def test_a_log_that_is_rewritten_as_a_whole_while_nothing_runs_is_found(world: World, witness: str) -> None:
    worker = world.start_worker("gpu-1")
    memory = worker.work_dir / "audit_heads.jsonl"
    wait_until(memory.exists, "the worker has written down a head")
    worker.running.signal(15)
    worker.running.wait()
    assert world.get("/api/audit/verify")["valid"]
    world.orchestrator.signal(15)
    world.orchestrator.wait()
    rewrite_all(world.home / "fleet.db")
    if witness == "a worker":
        (world.home / "audit_heads.jsonl").unlink()
    server = world.restart_server()
    if witness == "the file":
        assert "the audit log was cut off, rewritten" in server.text
        assert world.get(
            "/api/audit",
        )["entries"][0]["event_type"] in ("server.audit_contradicted", "server.started")
    else:
        program = worker.start()
        worker.becomes("idle")
        program.says("does not hold what this worker has seen of it")
    verified = world.get("/api/audit/verify")
    assert not verified["valid"]
    assert "contradicted" in [problem["code"] for problem in verified["problems"]]


@pytest.mark.e2e
def test_a_database_that_is_restored_from_an_older_copy_is_found(world: World) -> None:
    world.orchestrator.signal(15)
    world.orchestrator.wait()
    for file in world.home.glob("fleet.db*"):
        shutil.copy(file, world.folder / file.name)
    world.restart_server()
    for number in range(5):
        world.put(f"/api/configs/c{number}", {"settings": {}})
    world.orchestrator.signal(15)
    world.orchestrator.wait()
    for file in world.home.glob("fleet.db*"):
        file.unlink()
    for file in world.folder.glob("fleet.db*"):
        shutil.copy(file, world.home / file.name)
    assert "restored from an older copy" in world.restart_server().text
    verified = world.get("/api/audit/verify")
    assert not verified["valid"]
    assert {problem["code"] for problem in verified["problems"]} & {"cut_off", "contradicted"}
