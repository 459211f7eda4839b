"""A row that cannot be read is set aside and named; the others are read as ever."""

import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import UnreadableRow
from simpletuner_fleet.core.jobs.job import Hold, JobState
from simpletuner_fleet.core.people.approvals import Requirement, asked_for
from simpletuner_fleet.core.publishing import Publish, opened
from simpletuner_fleet.orchestrator.publishing import readable_publication
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.store import open_store
from simpletuner_fleet.store.integrity import unreadable_rows
from simpletuner_fleet.store.rows.documents import APPROVALS, ENDPOINTS, PUBLICATIONS
from tests.core.builders import a_job, a_worker
from tests.core.notices.test_timing import endpoint


async def a_database(file: Path) -> None:
    store = open_store(f"sqlite:///{file}")

    def add_both(tx: Tx) -> None:
        for name in ("w_bad", "w_good"):
            tx.add_worker(a_worker(name, token_hash=name))

    await store.write(add_both)
    await store.close()


async def test_what_is_damaged_in_one_database_is_not_told_of_another(tmp_path: Path) -> None:
    whole, damaged = tmp_path / "whole.db", tmp_path / "damaged.db"
    for file in (whole, damaged):
        await a_database(file)
    with sqlite3.connect(damaged) as connection:
        connection.execute("UPDATE workers SET gpus = '[[' WHERE id = 'w_bad'")
    connection.close()
    store = open_store(f"sqlite:///{damaged}")
    try:
        assert len(await store.read(lambda view: view.workers())) == 1
    finally:
        await store.close()
    assert unreadable_rows(whole) == []


@pytest.mark.parametrize(
    ("column", "value"), [("gpus", "[["), ("connection", "sideways"), ("created_at", "x")]
)
async def test_one_damaged_row_hides_no_other(tmp_path: Path, column: str, value: str) -> None:
    file = tmp_path / "fleet.db"
    await a_database(file)
    with sqlite3.connect(file) as connection:
        connection.execute(f"UPDATE workers SET {column} = ? WHERE id = 'w_bad'", (value,))
    connection.close()
    assert [(one.table, one.id) for one in unreadable_rows(file)] == [("workers", "w_bad")]
    store = open_store(f"sqlite:///{file}")
    try:
        await store.write(lambda tx: tx.put_setting("a", "b"))
        seen = await store.read(lambda view: view.workers())
        assert "w_good" in [worker.id for worker in seen]
        reported = await store.read(lambda view: view.rows_set_aside())
        assert ("workers", "w_bad") in [(one.table, one.id) for one in reported]
        assert "w_bad" not in [worker.id for worker in seen]
        with pytest.raises(UnreadableRow):
            await store.read(lambda view: view.worker("w_bad"))
    finally:
        await store.close()


@pytest.mark.parametrize("document", ["{", '{"id": "n_bad"}', "[" * 100_000])
async def test_one_damaged_endpoint_keeps_no_other_from_being_told(tmp_path: Path, document: str) -> None:
    file = tmp_path / "fleet.db"
    await a_database(file)
    store = open_store(f"sqlite:///{file}")
    try:

        def add_both(tx: Tx) -> None:
            for endpoint_id in ("n_bad", "n_good"):
                tx.put_endpoint(replace(endpoint(), id=endpoint_id))

        await store.write(add_both)
        with sqlite3.connect(file) as connection:
            connection.execute("UPDATE endpoints SET document = ? WHERE id = 'n_bad'", (document,))
        connection.close()
        assert [(one.table, one.id) for one in unreadable_rows(file)] == [("endpoints", "n_bad")]
        seen = await store.read(lambda view: view.endpoints())
        assert [one.id for one in seen] == ["n_good"]
        reported = await store.read(lambda view: view.rows_set_aside())
        assert ("endpoints", "n_bad") in [(one.table, one.id) for one in reported]
        with pytest.raises(UnreadableRow):
            await store.read(lambda view: view.endpoint("n_bad"))
    finally:
        await store.close()
        ENDPOINTS.set_aside.clear()


async def test_one_damaged_approval_keeps_no_other_from_being_decided(tmp_path: Path) -> None:
    """The health check reads those that are due with all else that is: no retry went on while one was damaged."""
    file = tmp_path / "fleet.db"
    await a_database(file)
    store = open_store(f"sqlite:///{file}")
    try:

        def add_both(tx: Tx) -> None:
            for seq, job_id in enumerate(("j_bad", "j_good"), start=101):
                asking = a_job(job_id, seq=seq, state=JobState.BLOCKED, hold=Hold.APPROVAL)
                tx.add_job(asking, b"{}")
                tx.put_approval(asked_for(asking, [Requirement(why="x")], (1.0,), 0.0))

        await store.write(add_both)
        with sqlite3.connect(file) as connection:
            connection.execute("UPDATE approvals SET document = '[[' WHERE job_id = 'j_bad'")
        connection.close()
        assert [(one.table, one.id) for one in unreadable_rows(file)] == [("approvals", "j_bad")]
        for look in (lambda view: view.due_approvals(9.0, 9), lambda view: view.pending_approvals(None, 9)):
            assert [one.job_id for one in await store.read(look)] == ["j_good"]
        reported = await store.read(lambda view: view.rows_set_aside())
        assert ("approvals", "j_bad") in [(one.table, one.id) for one in reported]
        with pytest.raises(UnreadableRow):
            await store.read(lambda view: view.approval("j_bad"))
    finally:
        await store.close()
        APPROVALS.set_aside.clear()


async def test_one_damaged_publication_keeps_no_other_from_being_published(tmp_path: Path) -> None:
    file = tmp_path / "fleet.db"
    await a_database(file)
    store = open_store(f"sqlite:///{file}")
    try:
        publish = Publish(to="folder://x")

        def add_both(tx: Tx) -> None:
            for seq, job_id in enumerate(("j_bad", "j_good"), start=101):
                done = a_job(job_id, seq=seq, state=JobState.COMPLETED)
                tx.add_job(done, b"{}")
                tx.put_publication(opened(done, publish, 1.0))

        await store.write(add_both)
        with sqlite3.connect(file) as connection:
            connection.execute("UPDATE publications SET document = '[[' WHERE job_id = 'j_bad'")
        connection.close()
        assert [(one.table, one.id) for one in unreadable_rows(file)] == [("publications", "j_bad")]
        due = await store.read(lambda view: view.due_publications(9.0, 9))
        assert [one.job_id for one in due] == ["j_good"]
        reported = await store.read(lambda view: view.rows_set_aside())
        assert ("publications", "j_bad") in [(one.table, one.id) for one in reported]
        assert await store.read(lambda view: readable_publication(view, "j_bad")) is None
        with pytest.raises(UnreadableRow):
            await store.read(lambda view: view.publication("j_bad"))
    finally:
        await store.close()
        PUBLICATIONS.set_aside.clear()
