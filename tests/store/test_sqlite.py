import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.jobs.job import Hold, Results
from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.ports import JobFilter, Tx
from simpletuner_fleet.store import sqlite_file
from simpletuner_fleet.store.failures import StoreBusy, StoreRefused
from simpletuner_fleet.store.sql import statements
from simpletuner_fleet.store.sql.job_finding import job_conditions, seen_condition
from simpletuner_fleet.store.sqlite import CHECKPOINT_AT_BYTES, SqliteStore, by_position
from simpletuner_fleet.store.sqlite_file import network_type_of, sqlite_warning
from tests.store.observing import Recorder
from tests.store.samples import BUNDLE, job

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/root rw
30 22 0:40 / /home rw - nfs4 server:/home rw
31 30 0:41 / /home/local\\040disk rw - xfs /dev/sdb rw
32 22 0:42 / /cloud rw - fuse.sshfs user@host: rw
33 22 0:43 / /phone rw - fuse.jmtpfs phone rw
34 22 0:44 / /share rw - cifs //server/share rw
35 22 0:45 / /host rw - 9p host rw
"""


def adding(number: int, bundle: bytes) -> Callable[[Tx], None]:
    return lambda tx: tx.add_job(job(number), bundle)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/fleet.db", None),
        ("/home/anna/fleet.db", "nfs4"),
        ("/home/local disk/fleet.db", None),
        ("/homely/fleet.db", None),
        ("/cloud/fleet.db", "fuse.sshfs"),
        ("/phone/fleet.db", None),
        ("/share/fleet.db", "cifs"),
        ("/host/fleet.db", "9p"),
    ],
)
def test_a_network_file_system_is_recognised(path: str, kind: str | None) -> None:
    assert network_type_of(Path(path), MOUNTS) == kind


def test_a_database_on_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"30 22 0:40 / {tmp_path} rw - nfs4 server:/home rw\n")
    monkeypatch.setattr(sqlite_file, "MOUNTS", mounts)
    with pytest.raises(StoreRefused, match="network file system"):
        SqliteStore(tmp_path / "fleet.db")
    assert not (tmp_path / "fleet.db").exists()


async def test_a_second_orchestrator_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "fleet.db")
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "fleet.db")
    for path in (tmp_path / "fleet.db", link):
        with pytest.raises(StoreBusy):
            SqliteStore(path)
    await first.write(lambda tx: tx.put_setting("k", "v"))
    await first.close()
    second = SqliteStore(tmp_path / "fleet.db")
    assert await second.read(lambda view: view.setting("k")) == "v"
    await second.close()


async def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    path.touch(0o644)
    store = SqliteStore(path)
    await store.write(lambda tx: tx.put_setting("k", "v"))
    modes = {file.name: file.stat().st_mode & 0o777 for file in os.scandir(tmp_path)}
    await store.close()
    assert modes == dict.fromkeys(["fleet.db", "fleet.db-wal", "fleet.db-shm", "fleet.db.lock"], 0o600)


async def test_a_damaged_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    store = SqliteStore(path)
    for number in range(1, 200):
        await store.write(adding(number, BUNDLE))
    await store.close()
    content = bytearray(path.read_bytes())
    content[8192:40960] = b"\xff" * (40960 - 8192)
    path.write_bytes(content)
    with pytest.raises(StoreRefused, match="damaged"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    path.write_text("hello " * 1000)
    with pytest.raises(StoreRefused, match="damaged"):
        SqliteStore(path)
    assert path.read_text().startswith("hello")


async def test_a_lock_of_another_program_is_waited_for_a_while_and_then_told(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "fleet.db", busy_timeout_s=0.05)
    outsider = sqlite3.connect(tmp_path / "fleet.db", isolation_level=None)
    outsider.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="Another program has locked"):
        await store.write(lambda tx: tx.put_setting("k", "v"))
    assert await store.read(lambda view: view.setting("k")) is None
    outsider.execute("ROLLBACK")
    outsider.close()
    await store.write(lambda tx: tx.put_setting("k", "v"))
    await store.close()


async def test_the_write_ahead_log_stays_small_and_keeps_what_it_has_of_the_disk(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "fleet.db")
    sizes = []
    for number in range(1, 101):
        await store.write(adding(number, bytes(512 * 1024)))
        sizes.append((tmp_path / "fleet.db-wal").stat().st_size)
    assert max(sizes) < 2 * CHECKPOINT_AT_BYTES
    assert min(sizes[40:]) >= CHECKPOINT_AT_BYTES  # it had been as large as that by then
    await store.close()
    assert not (tmp_path / "fleet.db-wal").exists()


async def test_a_commit_is_synced_and_only_the_writer_may_checkpoint(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "fleet.db")
    pragmas = ("journal_mode", "synchronous", "foreign_keys", "wal_autocheckpoint", "query_only", "mmap_size")

    def look(view: object) -> list[object]:
        return [view._db.row(f"PRAGMA {pragma}", {})[0] for pragma in pragmas]  # type: ignore[attr-defined]

    assert await store.write(look) == ["wal", 2, 1, 0, 0, 0]
    assert await store.read(look) == ["wal", 2, 1, 0, 1, 0]
    await store.close()


def test_it_warns_of_versions_with_the_wal_reset_defect() -> None:
    assert sqlite_warning((3, 51, 3)) is None
    assert sqlite_warning((3, 6, 23)) is None
    for version in ((3, 7, 0), (3, 40, 1), (3, 51, 2)):
        assert ".".join(map(str, version)) in (sqlite_warning(version) or "")


EXPECTED_INDEXES = {
    "LIVE_JOBS": "jobs_by_state",
    "QUEUE_START": "jobs_queue",
    "QUEUE_REST_OF_RANK": "jobs_queue (rank=? AND seq>?)",
    "QUEUE_LATER_RANKS": "jobs_queue (rank>?)",
    "QUEUED_AHEAD": "jobs_queue (rank=? AND seq<?)",
    "QUEUED_WITHIN_RANK": "jobs_queue (rank=? AND seq>? AND seq<?)",
    "QUEUED_BETWEEN_RANKS": "jobs_queue (rank>? AND rank<?)",
    "DUE_BACKOFFS": "jobs_held_for_a_while",
    "NEXT_BACKOFF": "jobs_held_for_a_while",
    "LIVE_ATTEMPTS": "attempts_one_live_per_job",
    "LIVE_ATTEMPTS_OF_WORKER": "attempts_live",
    "ATTEMPTS_OF_WORKER": "attempts_by_worker",
    "ATTEMPT_BY_UPLOAD_TOKEN": "attempts_by_upload_token",
    "OFFLINE_WORKERS": "workers_offline",
    "JOB_EVENTS": "audit_by_target",
    "USERS_START": "users_in_order",
    "USERS_AFTER": "users_in_order ((created_at,id)>(?,?))",
    "API_TOKENS_OF": "api_tokens_of_owner (owner=?)",
    "API_TOKENS_OF_NAME": "api_tokens_of_owner (owner=? AND name=?)",
}
SORTED_AFTERWARDS = (
    *("LIVE_JOBS", "LIVE_ATTEMPTS", "ATTEMPT_BY_UPLOAD_TOKEN", "API_TOKENS_OF", "API_TOKENS_OF_NAME"),
)


async def test_no_look_walks_a_table_that_has_an_index_for_it(tmp_path: Path) -> None:
    await SqliteStore(tmp_path / "fleet.db").close()
    connection = sqlite3.connect(tmp_path / "fleet.db")
    seen, _ = seen_condition(VisibilityScope(ids=frozenset({"u_1", "t_1"}), teams=frozenset({"tm_1"})))
    for name, index in EXPECTED_INDEXES.items():
        statement = getattr(statements, name)
        for whole in {statement.replace("{seen}", ""), statement.replace("{seen}", f" AND {seen}")}:
            text, _ = by_position(whole)
            plan = " ".join(
                row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", [1] * text.count("?"))
            )
            assert index in plan, (whole, plan)
            assert "TEMP B-TREE" not in plan or name in SORTED_AFTERWARDS, (whole, plan)
    page, _ = by_position(
        statements.JOBS_SORTED.format(conditions="state = :state AND state <> ''", order="seq DESC")
    )
    assert "jobs_by_state" in str(connection.execute(f"EXPLAIN QUERY PLAN {page}", [1, 1]).fetchall())
    connection.close()


OWNED = "jobs_by_owner_and_state (owner=? AND state=?)"
NAMED = "sqlite_autoindex_jobs_1 (id=?)"


@pytest.mark.parametrize(
    ("statement", "where", "state", "index"),
    [
        (statements.JOBS_SORTED, JobFilter(owner="u_1"), "running", OWNED),
        (statements.JOBS_MATCHING, JobFilter(owner="u_1", finished_since=1.0), "failed", OWNED),
        (statements.JOBS_MATCHING, JobFilter(owner="u_1", hold=Hold.APPROVAL), "blocked", OWNED),
        (statements.WAITING_GROUPS, JobFilter(owner="u_1"), None, OWNED),
        (
            statements.JOBS_MATCHING,
            JobFilter(owner="u_1", results=(Results.MISSING,)),
            None,
            "jobs_without_results",
        ),
        (statements.JOBS_SORTED, JobFilter(owner="u_1"), None, "jobs_by_owner (owner=?)"),
        (statements.JOBS_SORTED, JobFilter(ids=("j_1", "j_2"), owner="u_1"), "queued", NAMED),
        (statements.JOBS_SORTED, JobFilter(ids=("j_1", "j_2"), config_name="c"), None, NAMED),
    ],
)
async def test_what_one_owner_has_is_found_without_walking_through_all_their_jobs(
    tmp_path: Path, statement: str, where: JobFilter, state: str | None, index: str
) -> None:
    await SqliteStore(tmp_path / "fleet.db").close()
    connection = sqlite3.connect(tmp_path / "fleet.db")
    conditions, _ = job_conditions(where, state)
    text, _ = by_position(statement.format(conditions=" AND ".join(conditions), order="seq DESC"))
    plan = connection.execute(f"EXPLAIN QUERY PLAN {text}", [1] * text.count("?")).fetchall()
    assert index in str(plan)
    connection.close()


async def test_a_commit_failure_is_told_to_the_keeper_of_the_index_in_the_writing_thread(
    tmp_path: Path,
) -> None:
    observer = Recorder()
    threads: list[object] = []
    store = SqliteStore(tmp_path / "fleet.db", busy_timeout_s=0.01)
    store.observe(observer)

    def step(tx: Tx) -> None:
        threads.append(threading.current_thread())
        tx.put_setting("k", "v")

    await store.write(step)
    observer.reset_in.clear()
    outsider = sqlite3.connect(tmp_path / "fleet.db", isolation_level=None)
    outsider.execute("BEGIN IMMEDIATE")
    answers = await asyncio.gather(*(store.write(step) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    assert observer.reset_in
    assert set(observer.reset_in) == set(threads)
    outsider.close()
    await store.close()


async def test_a_journal_that_is_gone_from_its_folder_is_noticed_and_nothing_in_it_is_lost(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "fleet.db")
    await store.write(lambda tx: tx.put_setting("kept", "yes"))
    (tmp_path / "fleet.db-wal").unlink()
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        await store.write(lambda tx: tx.put_setting("later", "yes"))
    assert store.find_trouble()
    await store.close()
    reopened = SqliteStore(tmp_path / "fleet.db")
    assert reopened.find_trouble() is None
    assert await reopened.read(lambda view: (view.setting("kept"), view.setting("later"))) == ("yes", None)
    await reopened.close()
