"""Reading any SQL database: the promise of ports.View."""

from simpletuner_fleet.store.database import Database
from simpletuner_fleet.store.operations_accounts import AccountsView
from simpletuner_fleet.store.operations_audit import AuditView
from simpletuner_fleet.store.operations_datasets import DatasetsView
from simpletuner_fleet.store.operations_jobs import JobsView
from simpletuner_fleet.store.operations_people import PeopleView
from simpletuner_fleet.store.operations_uploads import UploadsView
from simpletuner_fleet.store.operations_workers import WorkersView


class SqlView(JobsView, WorkersView, PeopleView, AuditView, UploadsView, AccountsView, DatasetsView):
    """Reading through whatever transaction the database is in."""

    def __init__(self, db: Database) -> None:
        self._db = db
