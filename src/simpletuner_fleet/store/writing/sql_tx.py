"""Implements a transaction over any SQL database: live rows in memory, the rest on the connection when it is free."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from simpletuner_fleet.core.audit import GENESIS
from simpletuner_fleet.core.jobs.job import TERMINAL
from simpletuner_fleet.core.jobs.requests.deleting import DeletedJob
from simpletuner_fleet.ports import ConfigVersion, RowObserver
from simpletuner_fleet.store.rows.batches import RowWrite
from simpletuner_fleet.store.rows.live_rows import ENDED, LiveRows
from simpletuner_fleet.store.rows.unsaved import Unsaved
from simpletuner_fleet.store.sql import statements as sql
from simpletuner_fleet.store.sql.audit import AuditTx
from simpletuner_fleet.store.sql.database import Database, Params, Row, SqlSession
from simpletuner_fleet.store.sql.datasets import DatasetsTx
from simpletuner_fleet.store.sql.deleted_jobs import DeletedJobsTx
from simpletuner_fleet.store.sql.jobs import NOTHING
from simpletuner_fleet.store.sql.machines.machine_rows import MachineRowsTx
from simpletuner_fleet.store.sql.people.accounts import AccountsTx
from simpletuner_fleet.store.sql.people.approvals import ApprovalsTx
from simpletuner_fleet.store.sql.people.endpoints import EndpointsTx
from simpletuner_fleet.store.sql.people.people import PeopleTx
from simpletuner_fleet.store.sql.people.scim import ScimRowsTx
from simpletuner_fleet.store.sql.publications import PublicationsTx
from simpletuner_fleet.store.sql.saved_views import SavedViewsTx
from simpletuner_fleet.store.sql.tallies import JOBS
from simpletuner_fleet.store.sql.uploads import UploadsTx
from simpletuner_fleet.store.sql.view import SqlView
from simpletuner_fleet.store.writing.live_tx import LiveTx
from simpletuner_fleet.store.writing.remembered import RememberedBytes

CONFIGS_REMEMBERED = 256
BUNDLE_BYTES_REMEMBERED = 32 * 1024 * 1024


class NeedsConnection(BaseException):
    """The step asked for something that is not in memory: it is undone and run again when the connection is free.

    Not an Exception, so that no step takes it for a trouble of its own.
    """


class GatedDatabase:
    """Implements Database on whichever connection is available when it is called."""

    def __init__(self, connection: Callable[[], Database]) -> None:
        self._connection = connection

    def rows(self, statement: str, params: Params) -> list[Row]:
        return self._connection().rows(statement, params)

    def row(self, statement: str, params: Params) -> Row | None:
        return self._connection().row(statement, params)

    def run(self, statement: str, params: Params) -> int:
        return self._connection().run(statement, params)

    def many(self, statement: str, params: Sequence[Params]) -> None:
        self._connection().many(statement, params)

    def script(self, text: str) -> None:
        self._connection().script(text)


class Batch:
    """Holds what one commit stores: the rows as they were when the batch was put together."""

    def __init__(self, unsaved: Unsaved, writes: list[RowWrite], counters: tuple[int, int] | None) -> None:
        self.unsaved = unsaved
        self.writes = writes
        self.counters = counters

    def write_down(self, session: SqlSession) -> None:
        if self.unsaved.deleted_workers:
            session.many(sql.DELETE_WORKER, [{"id": id} for id in self.unsaved.deleted_workers])
        session.write_rows(self.writes)
        if self.counters is not None:
            session.run(sql.SAVE_COUNTERS, {"seq": self.counters[0], "epoch": self.counters[1]})


class SqlTx(
    LiveTx,
    DeletedJobsTx,
    PeopleTx,
    UploadsTx,
    AccountsTx,
    DatasetsTx,
    PublicationsTx,
    ApprovalsTx,
    AuditTx,
    EndpointsTx,
    SavedViewsTx,
    MachineRowsTx,
    ScimRowsTx,
):
    """Implements ports.Tx over any SQL database.

    The pipeline tells it when a step is kept or undone, and when a batch is stored or lost.

    A step runs in memory as long as it can, while an earlier batch may be on its way to the disk. What memory
    does not hold needs the connection, which a step has to itself when it runs `directly`.
    """

    def __init__(self, session: SqlSession, peek: Database | None) -> None:
        """Takes `peek`, which reads a few committed rows without waiting, where the database can do that."""
        self._session = session
        self._peek = peek
        self._rows = LiveRows()
        self._bundles = RememberedBytes(BUNDLE_BYTES_REMEMBERED)
        self._db = GatedDatabase(self._with_everything_written)
        self._over = SqlView(GatedDatabase(self._for_stored_rows))
        self.directly = False
        self._direct_batch_in_flight = False
        self.forget()

    def observe(self, observer: RowObserver) -> None:
        self._rows.observer = observer
        self.forget()

    def forget(self) -> None:
        """Drops all that is in memory: the transaction that made it true is lost."""
        self.loaded = False
        self._rows.clear()
        self._seq = self._epoch = self._top_seq = self._top_epoch = 0
        self._audit_head = (0, GENESIS)
        self._step, self._kept = Unsaved(), Unsaved()
        self._in_flight, self._written = Unsaved(), Unsaved()
        self._direct_batch_in_flight = False
        self._known_classes: set[str] = set()
        self._visited_jobs, self._visited_attempts = [], []
        self._configs: dict[str, ConfigVersion] = {}
        self._bundles.clear()
        self._saved_counters = (0, 0)
        self._mark()

    def load(self) -> None:
        """Reads what is live, in the transaction that the session has begun."""
        stored = SqlView(self._session)
        counters = self._session.row(sql.COUNTERS, NOTHING)
        if counters is None:
            raise LookupError("the table of counters is empty")
        head = self._session.row(sql.AUDIT_HEAD, NOTHING)
        self.forget()
        self._seq, self._epoch = self._saved_counters = (counters[0], counters[1])
        self._top_seq, self._top_epoch = self._saved_counters
        self._audit_head = (0, GENESIS) if head is None else (head[0], head[-1])
        self._rows.load(stored.workers_checked(), stored.live_jobs(), stored.live_attempts_checked())
        self.loaded = True
        self._mark()

    def _mark(self) -> None:
        self._marks = (self._seq, self._epoch, self._top_seq, self._top_epoch, self._audit_head)

    # Steps

    def keep_step(self) -> None:
        step, kept = self._step, self._kept
        if step.classes:
            self._known_classes.update(step.classes)
        self._rows.journal.clear()
        if step.audit or step:  # nearly every step leaves an entry, which is seen without a call
            for job_id in step.bundles:
                self._bundles.put(job_id, step.bundles[job_id])
            if kept.audit or kept:
                kept.absorb(step)
                step.clear()
            else:
                self._kept, self._step = step, Unsaved()
        if self._visited_jobs or self._visited_attempts:
            self._end_visits()
        self._mark()

    def undo_step(self) -> None:
        self._rows.take_back()
        touched, self._step = self._step, Unsaved()
        touched.absorb(self._written)
        self._known_classes.difference_update(self._written.classes)
        self._written = Unsaved()
        self._seq, self._epoch, self._top_seq, self._top_epoch, self._audit_head = self._marks
        self._configs.clear()
        self._let_go(touched.jobs, touched.new_jobs, touched.attempts, touched.new_attempts)
        self._end_visits()

    @property
    def changed(self) -> bool:
        return bool(self._kept.audit or self._kept) or (self._seq, self._epoch) != self._saved_counters

    # Batches

    def take_batch(self) -> Batch:
        """Returns what was kept since the last batch; it stays visible as being in flight."""
        unsaved, self._kept = self._kept, Unsaved()
        self._in_flight = unsaved
        self._direct_batch_in_flight = self.directly
        counters = (self._seq, self._epoch)
        changed = counters != self._saved_counters
        self._saved_counters = counters
        return Batch(unsaved, unsaved.writes(self._rows), counters if changed else None)

    def stored(self, batches: Sequence[Batch]) -> None:
        """Notes that a commit has stored these batches, and whatever a step wrote itself."""
        self._in_flight = Unsaved()
        self._direct_batch_in_flight = False
        for stored in (*(batch.unsaved for batch in batches), self._written):
            self._let_go(stored.jobs, stored.new_jobs, stored.attempts, stored.new_attempts)
        self._written = Unsaved()

    def _end_visits(self) -> None:
        self._let_go(self._visited_jobs, (), self._visited_attempts, ())
        self._visited_jobs, self._visited_attempts = [], []

    def _let_go(
        self, jobs: Iterable[str], more_jobs: Iterable[str], attempts: Iterable[str], more: Iterable[str]
    ) -> None:
        """Evicts rows that have ended, unless a change to them is still to be stored."""
        rows = self._rows
        for job_id in chain(jobs, more_jobs):
            if job_id in rows.jobs and rows.jobs[job_id].state in TERMINAL and not self._job_waits(job_id):
                rows.evict_job(job_id)
                self._bundles.drop(job_id)  # nobody offers it any more
        for attempt_id in chain(attempts, more):
            if (
                attempt_id in rows.attempts
                and rows.attempts[attempt_id].state is ENDED
                and not self._attempt_waits(attempt_id)
            ):
                rows.evict_attempt(attempt_id)

    def _job_waits(self, job_id: str) -> bool:
        """Tells whether a change to the job is still to be stored."""
        step, kept, in_flight = self._step, self._kept, self._in_flight
        return (
            job_id in step.jobs
            or job_id in step.new_jobs
            or job_id in kept.jobs
            or job_id in kept.new_jobs
            or job_id in in_flight.jobs
            or job_id in in_flight.new_jobs
        )

    def _attempt_waits(self, attempt_id: str) -> bool:
        step, kept, in_flight = self._step, self._kept, self._in_flight
        return (
            attempt_id in step.attempts
            or attempt_id in step.new_attempts
            or attempt_id in kept.attempts
            or attempt_id in kept.new_attempts
            or attempt_id in in_flight.attempts
            or attempt_id in in_flight.new_attempts
        )

    # The connection

    def _with_everything_written(self) -> Database:
        """Returns the connection for what is not kept in memory, after writing all earlier changes to it."""
        if not self.directly:
            raise NeedsConnection
        self._write_step_down()
        return self._session

    def _write_step_down(self) -> None:
        """Writes the running step's own changes to the connection, so that they precede the rest of the step."""
        if self._step:
            written, self._step = self._step, Unsaved()
            Batch(written, written.writes(self._rows), None).write_down(self._session)
            self._known_classes.update(written.classes)
            self._written.absorb(written)

    def _for_stored_rows(self) -> Database:
        if self.directly:
            return self._session
        if self._peek is None or self._direct_batch_in_flight:
            raise NeedsConnection
        return self._peek

    @property
    def _stored(self) -> SqlView:
        return self._over

    @property
    def _layers(self) -> tuple[Unsaved, ...]:
        return self._step, self._kept, self._in_flight

    def job_bundle(self, job_id: str) -> bytes | None:
        """Returns the bundle of a job, which never changes: the newest are cached for when the job is offered."""
        bundle = self._bundles.get(job_id)
        if bundle is None:
            bundle = super().job_bundle(job_id)
            may_be_undone = job_id in self._step.bundles or job_id in self._written.bundles
            if bundle is not None and not may_be_undone:
                self._bundles.put(job_id, bundle)
        return bundle

    def delete_job(self, deleted: DeletedJob) -> None:
        job = self.job(deleted.id)
        attempts = self.attempts_of_job(deleted.id)
        super().delete_job(deleted)
        if job is not None:
            self._step.tallies[JOBS, job.state.value] -= 1
        for attempt in attempts:
            self._rows.evict_attempt(attempt.id)
        self._rows.evict_job(deleted.id)
        self._bundles.drop(deleted.id)

    def config(self, name: str, version: int | None = None) -> ConfigVersion | None:
        """Returns a config; the newest version of each name is cached, since jobs are submitted by it."""
        if version is not None:
            return self._stored.config(name, version)
        known = self._configs.get(name)
        if known is None:
            known = self._stored.config(name)
            if known is not None and len(self._configs) < CONFIGS_REMEMBERED:
                self._configs[name] = known
        return known

    def add_config(self, config: ConfigVersion) -> None:
        self._configs.clear()
        super().add_config(config)

    def delete_config(self, name: str, at: float) -> None:
        self._configs.clear()
        super().delete_config(name, at)

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def raise_epoch_to(self, at_least: int) -> None:
        self._epoch = max(self._epoch, at_least)
