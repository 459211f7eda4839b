"""Random stories told to the memory store and to SQLite: both give the same answers throughout."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.jobs.job import AttemptState, Hold, JobState
from simpletuner_fleet.core.jobs.progress import READERS, read_progress
from simpletuner_fleet.core.people.approvals import Approval, ApprovalState
from simpletuner_fleet.core.workers.worker import Connection
from simpletuner_fleet.ports import AuditFilter, ConcurrentChange, JobFilter, Store, Tx, View
from simpletuner_fleet.store.memory.store import MemoryStore
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.ready_databases import lay_sqlite
from tests.store.observing import Recorder, unmarked
from tests.store.samples import BUNDLE, attempt, config, event, job, session, token, user, worker

Operation = Callable[[Tx], Any]
numbers = st.integers(1, 6)
ranks = st.sampled_from([-1.0, 0.0, 0.5, 2.0])
times = st.sampled_from([1.0, 2.0, 3.0])
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
said = st.sampled_from([*READERS]) | texts
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


class GaveUp(FleetError):
    """The step changed its mind."""


def add_job(number: int, rank: float, state: JobState, hold: Hold, needs: int) -> Operation:
    kept_back = Hold.NONE if state is not JobState.QUEUED else hold
    made = job(
        number,
        rank=rank,
        state=state,
        hold=kept_back,
        not_before=rank if kept_back is Hold.BACKOFF else None,
        class_id=f"c_{number % 2}",
        owner=f"t_{number % 3}",
        depends_on=(f"j_{needs}",),
    )
    return lambda tx: tx.add_job(made, BUNDLE)


def change_job(number: int, stale: bool, fields: dict[str, Any]) -> Operation:
    def step(tx: Tx) -> None:
        job = tx.job(f"j_{number}")
        if job is not None:
            tx.save_job(replace(job, version=job.version - stale, **fields))

    return step


def add_attempt(number: int, of_job: int, worker_number: int, state: AttemptState) -> Operation:
    made = attempt(
        number,
        job_id=f"j_{of_job}",
        worker_id=f"w_{worker_number}",
        state=state,
        upload_token_hash=f"h{number % 3}",
    )
    return lambda tx: tx.add_attempt(made)


def change_attempt(number: int, state: AttemptState, lines: str) -> Operation:
    def step(tx: Tx) -> None:
        attempt = tx.attempt(f"a_{number}")
        if attempt is not None:
            tx.save_attempt(replace(attempt, state=state, last_lines=lines))

    return step


def change_worker(number: int, stale: bool, fields: dict[str, Any]) -> Operation:
    def step(tx: Tx) -> None:
        worker = tx.worker(f"w_{number}")
        if worker is not None:
            tx.save_worker(replace(worker, version=worker.version - stale, **fields))

    return step


def put_approval(number: int, asked_at: float, expires_at: float | None, state: ApprovalState) -> Operation:
    made = Approval(
        job_id=f"j_{number}",
        owner="t_1",
        requirements=(),
        asked_at=asked_at,
        expires_at=expires_at,
        state=state,
    )
    return lambda tx: tx.put_approval(made)


def tell(*names: str) -> Operation:
    return lambda tx: [getattr(tx, name)() for name in names]


operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(add_job, numbers, ranks, st.sampled_from(JobState), st.sampled_from(Hold), numbers),
    st.builds(
        change_job,
        numbers,
        st.booleans(),
        st.fixed_dictionaries(
            {},
            optional={
                "state": st.sampled_from(JobState),
                "rank": ranks,
                "hold": st.sampled_from(Hold),
                "not_before": st.none() | times,
                "progress": st.none()
                | st.builds(read_progress, st.dictionaries(said, json_values, max_size=3)),
                "error": st.none() | texts,
                "worker_id": st.none() | st.sampled_from(["w_1", "w_2"]),
            },
        ),
    ),
    st.builds(add_attempt, numbers, numbers, numbers, st.sampled_from(AttemptState)),
    st.builds(change_attempt, numbers, st.sampled_from(AttemptState), texts),
    st.builds(
        lambda number, name: lambda tx: tx.add_worker(worker(number, name=name)),
        numbers,
        st.sampled_from(["a", "A", "b", "c"]) | texts,
    ),
    st.builds(
        change_worker,
        numbers,
        st.booleans(),
        st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(["a", "B"]) | texts,
                "connection": st.sampled_from(Connection),
                "offline_since": st.none() | times,
                "labels": st.dictionaries(texts, texts, max_size=2),
            },
        ),
    ),
    st.builds(lambda number: lambda tx: tx.delete_worker(f"w_{number}"), numbers),
    st.builds(lambda number, at: lambda tx: tx.touch_heartbeats([(f"w_{number}", at)]), numbers, times),
    st.builds(
        lambda number, version: lambda tx: tx.add_config(config(f"c{number}", version)), numbers, numbers
    ),
    st.builds(lambda number, at: lambda tx: tx.delete_config(f"c{number}", at), numbers, times),
    st.builds(
        lambda number, secret: lambda tx: tx.add_api_token(token(number, token_hash=f"h{secret}")),
        numbers,
        numbers,
    ),
    st.builds(
        lambda number, secret: lambda tx: tx.save_api_token(token(number, token_hash=f"h{secret}")),
        numbers,
        numbers,
    ),
    st.builds(lambda secret, at: lambda tx: tx.note_token_use(f"h{secret}", at), numbers, times),
    st.builds(
        lambda number, name: lambda tx: tx.add_user(user(number, name=name)),
        numbers,
        st.sampled_from(["a", "A", "b"]) | texts,
    ),
    st.builds(
        lambda number, name, at: lambda tx: tx.save_user(user(number, name=name, disabled_at=at)),
        numbers,
        st.sampled_from(["a", "B"]) | texts,
        st.none() | times,
    ),
    st.builds(lambda number, of: lambda tx: tx.add_session(session(number, of)), numbers, numbers),
    st.builds(lambda number, at: lambda tx: tx.renew_session(f"session-{number}", at), numbers, times),
    st.builds(lambda number: lambda tx: tx.delete_session(f"session-{number}"), numbers),
    st.builds(lambda made, seen: lambda tx: tx.delete_sessions_before(made, seen), times, times),
    st.builds(lambda key, value: lambda tx: tx.put_setting(key, value), texts, texts),
    st.builds(lambda number, at: lambda tx: tx.put_setting(f"secret:{number}", str(at)), numbers, times),
    st.builds(lambda number: lambda tx: tx.delete_setting(f"secret:{number}"), numbers),
    st.builds(
        lambda kind, target, details, at: (
            lambda tx: tx.append_audit(at, [event(kind, f"j_{target}", details=details)])
        ),
        st.sampled_from([EventType.JOB_SUBMITTED, EventType.JOB_LOST]),
        numbers,
        st.dictionaries(texts, json_values, max_size=3),
        times,
    ),
    st.builds(put_approval, numbers, times, st.none() | times, st.sampled_from(ApprovalState)),
    st.builds(lambda epoch: lambda tx: tx.raise_epoch_to(epoch), st.integers(0, 20)),
    st.sampled_from([tell("next_seq", "next_epoch"), tell("job_counts", "audit_stats", "workers")]),
)
steps = st.tuples(st.lists(operations, min_size=1, max_size=4), st.booleans())


def step_of(parts: list[Operation], gives_up: bool) -> Operation:
    def step(tx: Tx) -> list[Any]:
        answers = [part(tx) for part in parts]
        if gives_up:
            raise GaveUp
        return answers

    return step


async def outcome(store: Store, step: Operation) -> object:
    try:
        return await store.write(step)
    except (FleetError, ConcurrentChange) as refused:
        return type(refused) if isinstance(refused, FleetError) else ConcurrentChange


def everything(view: View) -> list[object]:
    return [
        view.jobs_page(JobFilter(), None, 99),
        view.jobs_page(JobFilter(states=("queued", "running"), owner="t_1"), 5, 2),
        view.jobs_page(JobFilter(worker_id="w_1", created_since=103.0), None, 2),
        view.jobs_page(JobFilter(ids=("j_2", "j_4", "j_9"), states=("queued", "blocked")), None, 9),
        view.jobs_matching(JobFilter(ids=())),
        view.queue_page(None, 99),
        view.queue_page((0.0, 3), 2),
        view.queued_ahead(0.5, 2),
        view.queued_ahead(0.5, 2, (-1.0, 3)),
        view.queued_ahead(0.5, 5, (0.5, 2)),
        view.job_counts(),
        view.due_backoffs(2.0, 2),
        view.next_backoff_at(),
        [view.dependents_of(f"j_{number}", 0, 99) for number in range(1, 7)],
        [view.attempts_of_job(f"j_{number}") for number in range(1, 7)],
        [view.attempts_of_worker(f"w_{number}", 2) for number in range(1, 7)],
        view.attempts_since(0.0, 100),
        view.job_titles([f"j_{number}" for number in range(1, 7)]),
        [view.live_attempts_of_worker(f"w_{number}") for number in range(1, 7)],
        view.live_attempts(),
        view.attempt_by_epoch("j_1", 1),
        [view.attempt_by_upload_token(f"h{number}") for number in range(3)],
        view.workers(),
        view.worker_by_name("A"),
        view.worker_by_token_hash("hash-1"),
        view.offline_workers_before(2.5),
        view.configs(),
        [view.config_versions(f"c{number}") for number in range(1, 7)],
        view.api_tokens(),
        view.api_token_by_hash("h1"),
        [view.api_tokens_of(owner) for owner in ("", "u_1")],
        view.users(),
        [view.users_page(after, 2) for after in (None, (2.0, "u_2"))],
        view.user_by_name("A"),
        [view.sessions_of_user(f"u_{number}") for number in range(1, 7)],
        list(view.settings_with_prefix("secret:").items()),
        view.audit_range(0, 99),
        view.audit_page(AuditFilter(event_type="job.lost", until=3.0), 2, 1),
        view.audit_count(AuditFilter(target_id="j_1")),
        view.audit_stats(),
        view.audit_head(),
        view.job_events("j_1", 2),
        view.pending_approvals(None, 99),
        view.pending_approvals((2.0, "j_2"), 2),
        view.due_approvals(2.5, 2),
    ]


def live_rows(view: View) -> list[object]:
    jobs = {job.id: job for job in view.jobs_page(JobFilter(), None, 99) if not job.terminal}
    attempts = {attempt.id: attempt for attempt in view.live_attempts()}
    return [jobs, attempts, {worker.id: unmarked(worker) for worker in view.workers()}]


async def both_agree(path: Path, story: list[tuple[list[Operation], bool]]) -> None:
    memory, sqlite = MemoryStore(), SqliteStore(path)
    observers = Recorder(), Recorder()
    memory.observe(observers[0])
    sqlite.observe(observers[1])
    try:
        for parts, gives_up in story:
            step = step_of(parts, gives_up)
            assert await outcome(memory, step) == await outcome(sqlite, step)
        together = [step_of(parts, gives_up) for parts, gives_up in story]
        answers = await asyncio.gather(*(outcome(sqlite, step) for step in together))
        assert [await outcome(memory, step) for step in together] == list(answers)
        assert await memory.read(everything) == await sqlite.read(everything)
        assert observers[0].rows() == observers[1].rows() == await memory.read(live_rows)
    finally:
        await sqlite.close()


@settings(max_examples=150)
@given(st.lists(steps, min_size=1, max_size=12))
def test_memory_and_sqlite_tell_the_same_story(story: list[tuple[list[Operation], bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(both_agree(lay_sqlite(Path(folder) / "fleet.db"), story))
