"""The promises of ports.View and ports.Tx, once for every SQL database."""

from collections import defaultdict
from typing import NamedTuple

from simpletuner_fleet.core.audit import GENESIS
from simpletuner_fleet.store import statements as sql
from simpletuner_fleet.store.database import Database
from simpletuner_fleet.store.operations_accounts import AccountsTx, AccountsView
from simpletuner_fleet.store.operations_audit import AuditTx, AuditView
from simpletuner_fleet.store.operations_datasets import DatasetsTx, DatasetsView
from simpletuner_fleet.store.operations_jobs import NOTHING, JobsTx, JobsView
from simpletuner_fleet.store.operations_people import PeopleTx, PeopleView
from simpletuner_fleet.store.operations_uploads import UploadsTx, UploadsView
from simpletuner_fleet.store.operations_workers import WorkersTx, WorkersView


class SqlView(JobsView, WorkersView, PeopleView, AuditView, UploadsView, AccountsView, DatasetsView):
    """Reading through whatever transaction the database is in."""

    def __init__(self, db: Database) -> None:
        self._db = db


class Marks(NamedTuple):
    """What the writer need not ask the database again, because nobody else writes."""

    seq: int
    epoch: int
    audit_head: tuple[int, str]


class SqlTx(JobsTx, WorkersTx, PeopleTx, AuditTx, UploadsTx, AccountsTx, DatasetsTx):
    """Writing. The writer tells it when a step begins, succeeds or is undone, and when a batch is kept or lost."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.forget()

    def forget(self) -> None:
        """Drops all that was remembered: the transaction that made it true is lost."""
        self._loaded = False
        self._seq = self._epoch = 0
        self._audit_head = (0, GENESIS)
        self._unwritten = defaultdict(int)
        self._of_this_step = []
        self._known_classes = set()
        self._new_classes = []
        self._committed_counters = (0, 0)
        self._mark()

    def begin_batch(self) -> None:
        if not self._loaded:
            self._load()

    def _load(self) -> None:
        counters = self._db.row(sql.COUNTERS, NOTHING)
        if counters is None:
            raise LookupError("the table of counters is empty")
        head = self._db.row(sql.AUDIT_HEAD, NOTHING)
        self._seq, self._epoch = self._committed_counters = (counters[0], counters[1])
        self._audit_head = (0, GENESIS) if head is None else (head[0], head[-1])
        self._loaded = True
        self._mark()

    def _mark(self) -> None:
        self._marks = Marks(self._seq, self._epoch, self._audit_head)

    def keep_step(self) -> None:
        self._new_classes.clear()
        self._keep_tally()
        self._mark()

    def undo_step(self) -> None:
        self._seq, self._epoch, self._audit_head = self._marks
        self._known_classes.difference_update(self._new_classes)
        self._new_classes.clear()
        self._of_this_step.clear()

    def before_commit(self) -> None:
        """Writes down what was only remembered so far."""
        if (self._seq, self._epoch) != self._committed_counters:
            self._db.run(sql.SAVE_COUNTERS, {"seq": self._seq, "epoch": self._epoch})
        self._write_tallies()

    def after_commit(self) -> None:
        self._committed_counters = (self._seq, self._epoch)
        self._unwritten.clear()

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def raise_epoch_to(self, at_least: int) -> None:
        self._epoch = max(self._epoch, at_least)
