import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from simpletuner_fleet.core.audit import ChainCheck, Problem, Witness, emptied
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.ports import AuditFilter, Store, Tx, View
from simpletuner_fleet.store.memory.store import MemoryStore
from simpletuner_fleet.store.postgres import PostgresStore
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.store.samples import ANNA, event

EVENTS = [
    event(
        EventType.JOB_SUBMITTED,
        "j_1",
        actor=ANNA,
        details={"priority": 5, "ratio": 0.1, "labels": {"b": 1, "a": 2}},
    ),
    event(EventType.JOB_DISPATCHED, "j_1", details={"worker": "w_1", "gpus": ("GPU-1",), "name": "Grüße\0"}),
    event(EventType.WORKER_CREATED, "w_1", target_type="worker", actor=ANNA),
    event(EventType.JOB_SUBMITTED, "j_2"),
]


async def append(store: Store, at: float, *events: Event) -> None:
    await store.write(lambda tx: tx.append_audit(at, events))


async def problems_of(store: Store, *witnesses: Witness) -> list[Problem]:
    check = ChainCheck(witnesses)
    check.feed(await store.read(lambda view: view.audit_range(0, 1000)))
    return check.finish()


async def test_entries_form_a_chain_over_all_transactions(store: Store) -> None:
    await append(store, 1.0, *EVENTS[:2])
    await append(store, 2, *EVENTS[2:])
    await append(store, 3.0)
    entries = await store.read(lambda view: view.audit_range(0, 100))
    assert [(e.seq, e.at, e.event_type) for e in entries] == [
        (1, 1.0, "job.submitted"),
        (2, 1.0, "job.dispatched"),
        (3, 2.0, "worker.created"),
        (4, 2.0, "job.submitted"),
    ]
    assert entries[0].details == {"priority": 5, "ratio": 0.1, "labels": {"b": 1, "a": 2}}
    assert (entries[0].actor_id, entries[0].actor_name, entries[0].ip) == ("t_anna", "Anna", "10.0.0.7")
    assert await problems_of(store) == []
    assert await store.read(lambda view: view.audit_head()) == entries[-1]


async def test_what_append_answers_is_what_is_read_back(store: Store) -> None:
    written = await store.write(lambda tx: tx.append_audit(1.5, EVENTS))
    assert await store.read(lambda view: view.audit_range(0, 100)) == written
    assert await store.read(lambda view: view.audit_range(1, 2)) == written[1:3]
    hashes = await store.read(lambda view: view.audit_hashes(1, 2))
    assert hashes == [(entry.seq, entry.hash) for entry in written[1:3]]


@pytest.mark.parametrize(
    "text",
    [
        "\0",
        "a\0b",
        "\ud800",
        "\ude00\ud83d",
        "😀",
        "Grüße",
        "\x7f",
        '"',
        "\\",
        "\\ud800",
        "\n\t\x01",
        "[{",
        "",
    ],
    ids=ascii,
)
async def test_any_text_in_any_place_is_chained_as_it_is_read_back(store: Store, text: str) -> None:
    all_details: list[dict[str, Any]] = [
        *({}, {"name": text}, {"names": (text, [text]), "more": {"a": None, "b": (1, 2.5, True)}}),
        *({f"key{text}": 1}, {"big": 2**70, "small": 1e-300, "large": 1e22}, {"none": ({},)}),
    ]
    events = [
        Event(
            type=EventType.JOB_SUBMITTED,
            actor=Actor(id=f"t_{text}", name=text, ip=text),
            target_type=f"job{text}",
            target_id=f"j_{text}",
            details=details,
        )
        for details in all_details
    ]
    written = await store.write(lambda tx: tx.append_audit(1.5, events))
    assert await store.read(lambda view: view.audit_range(0, 100)) == written
    assert await problems_of(store) == []


async def test_an_empty_log_has_no_head(store: Store) -> None:
    def look(view: View) -> tuple[object, ...]:
        return view.audit_head(), view.audit_range(0, 9), view.audit_stats(), view.audit_count(AuditFilter())

    assert await store.read(look) == (None, [], {}, 0)


async def test_entries_are_paged_filtered_and_counted(store: Store) -> None:
    for number, each in enumerate(EVENTS):
        await append(store, float(number), each)

    async def entries_found(
        limit: int = 9, offset: int = 0, newest_first: bool = True, **where: Any
    ) -> tuple[list[int], int]:
        def look(view: View) -> tuple[list[int], int]:
            page = view.audit_page(AuditFilter(**where), limit, offset, newest_first)
            return [entry.seq for entry in page], view.audit_count(AuditFilter(**where))

        return await store.read(look)

    assert await entries_found() == ([4, 3, 2, 1], 4)
    assert await entries_found(limit=2, offset=1) == ([3, 2], 4)
    assert await entries_found(limit=2, newest_first=False) == ([1, 2], 4)
    assert await entries_found(event_type="job.submitted") == ([4, 1], 2)
    assert await entries_found(event_type="job.failed") == ([], 0)
    either = frozenset({"job.submitted", "worker.created"})
    assert await entries_found(event_types=either) == ([4, 3, 1], 3)
    assert await entries_found(event_types=either, actor_id="t_anna") == ([3, 1], 2)
    assert await entries_found(actor_id="t_anna") == ([3, 1], 2)
    assert await entries_found(target_type="worker") == ([3], 1)
    assert await entries_found(target_type="job", target_id="j_1") == ([2, 1], 2)
    assert await entries_found(since=1.0, until=3.0) == ([3, 2], 2)
    assert await entries_found(event_type="job.submitted", since=1.0) == ([4], 1)
    stats = await store.read(lambda view: view.audit_stats())
    assert stats == {"job.submitted": 2, "job.dispatched": 1, "worker.created": 1}


async def test_a_job_tells_its_newest_events_oldest_first(store: Store) -> None:
    await append(
        store, 1.0, *EVENTS, event(EventType.JOB_COMPLETED, "j_1"), event(target="j_1", target_type="config")
    )
    assert [e.seq for e in await store.read(lambda view: view.job_events("j_1", 9))] == [1, 2, 5]
    assert [e.seq for e in await store.read(lambda view: view.job_events("j_1", 2))] == [2, 5]


async def test_numbers_that_json_cannot_hold_are_refused_and_change_nothing(store: Store) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        await append(store, 1.0, event(), event(details={"loss": float("nan")}))
    assert await store.read(lambda view: view.audit_head()) is None
    await append(store, 1.0, event())
    assert await problems_of(store) == []


EDITS = {
    "at": "at = at + 1",
    "event_type": "event_type = 'job.failed'",
    "actor_id": "actor_id = 'x'",
    "actor_name": "actor_name = 'x'",
    "ip": "ip = 'x'",
    "target_type": "target_type = 'x'",
    "target_id": "target_id = 'x'",
    "details": 'details = \'{"worker":"w_2"}\'',
    "details, no longer JSON": "details = 'x'",
    "details, a key twice": 'details = \'{"worker":"w_2",\' || substr(details, 2)',
    "hash": "hash = '0000000000000000000000000000000000000000000000000000000000000000'",
    "seq": "seq = 77",
}


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> "Tampering":
    if request.param == "sqlite":
        return Tampering(sqlite_path=tmp_path / "fleet.db")
    return Tampering(postgres_url=request.getfixturevalue("postgres_database"))


class Tampering:
    """Opens the store, and the database behind its back."""

    def __init__(self, *, sqlite_path: Path | None = None, postgres_url: str = "") -> None:
        self._path = sqlite_path
        self._url = postgres_url

    def store(self) -> Store:
        return SqliteStore(self._path) if self._path else PostgresStore(self._url)

    def run(self, sql: str) -> None:
        if self._path:
            with sqlite3.connect(self._path) as connection:
                connection.execute(sql)
            connection.close()
        else:
            with psycopg.connect(self._url) as postgres:
                postgres.execute(sql.encode())


async def test_an_edit_of_any_column_is_found(database: Tampering) -> None:
    store = database.store()
    await append(store, 1.25, *EVENTS)
    for column, edit in EDITS.items():
        database.run("CREATE TABLE kept AS SELECT * FROM audit")
        database.run(f"UPDATE audit SET {edit} WHERE seq = 2")
        assert await problems_of(store), column
        database.run("DELETE FROM audit")
        database.run("INSERT INTO audit SELECT * FROM kept")
        database.run("DROP TABLE kept")
        assert await problems_of(store) == [], column
    await store.close()


async def test_a_removed_entry_is_found(database: Tampering) -> None:
    store = database.store()
    await append(store, 1.0, *EVENTS)
    head = await store.read(lambda view: view.audit_head())
    assert head is not None
    database.run("DELETE FROM audit WHERE seq = 2")
    assert [problem.seq for problem in await problems_of(store)] == [3]
    database.run("DELETE FROM audit WHERE seq = 4")
    assert 4 in [problem.seq for problem in await problems_of(store, Witness("agent", head.seq, head.hash))]
    await store.close()


async def test_the_chain_goes_on_after_a_restart(database: Tampering) -> None:
    for number in range(3):
        store = database.store()
        await append(store, float(number), *EVENTS)
        assert await problems_of(store) == []
        await store.close()


async def test_the_chain_is_the_same_in_every_home(database: Tampering) -> None:
    store, memory = database.store(), MemoryStore()
    await append(store, 1.1, *EVENTS)
    await append(memory, 1.1, *EVENTS)
    assert await store.read(lambda view: view.audit_head()) == await memory.read(
        lambda view: view.audit_head()
    )
    await store.close()


async def test_emptied_entries_keep_their_place_and_their_hash_alone(store: Store) -> None:
    await append(store, 1.0, *EVENTS)
    before = await store.read(lambda view: view.audit_range(0, 10))

    def undone(tx: Tx) -> None:
        tx.empty_audit(3, 10)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        await store.write(undone)
    assert await store.read(lambda view: view.audit_range(0, 10)) == before
    assert await store.read(lambda view: view.job_events("j_1", 10)) == before[:2]
    assert await store.write(lambda tx: tx.empty_audit(3, 2)) == 2
    assert await store.write(lambda tx: tx.empty_audit(3, 2)) == 1
    assert await store.write(lambda tx: tx.empty_audit(3, 2)) == 0
    after = await store.read(lambda view: view.audit_range(0, 10))
    assert after == [*map(emptied, before[:3]), before[3]]
    assert await store.read(lambda view: view.audit_page(AuditFilter(), 10, 0)) == before[3:]
    assert await store.read(lambda view: view.audit_count(AuditFilter(since=0.0))) == 1
    assert await store.read(lambda view: view.audit_stats()) == {"job.submitted": 1}
    assert await store.read(lambda view: view.job_events("j_1", 10)) == []
    hashes = await store.read(lambda view: view.audit_hashes(0, 10))
    assert hashes == [(one.seq, one.hash) for one in before]
