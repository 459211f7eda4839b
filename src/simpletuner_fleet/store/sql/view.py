"""Reads any SQL database, as ports.View promises."""

from simpletuner_fleet.store.sql.audit import AuditView
from simpletuner_fleet.store.sql.database import Database
from simpletuner_fleet.store.sql.datasets import DatasetsView
from simpletuner_fleet.store.sql.deleted_jobs import DeletedJobsView
from simpletuner_fleet.store.sql.jobs import JobsView
from simpletuner_fleet.store.sql.machines.machine_rows import MachineRowsView
from simpletuner_fleet.store.sql.people.accounts import AccountsView
from simpletuner_fleet.store.sql.people.approvals import ApprovalsView
from simpletuner_fleet.store.sql.people.endpoints import EndpointsView
from simpletuner_fleet.store.sql.people.people import PeopleView
from simpletuner_fleet.store.sql.people.scim import ScimRows
from simpletuner_fleet.store.sql.publications import PublicationsView
from simpletuner_fleet.store.sql.saved_views import SavedViewsView
from simpletuner_fleet.store.sql.uploads import UploadsView
from simpletuner_fleet.store.sql.workers import WorkersView


class SqlView(
    JobsView,
    DeletedJobsView,
    WorkersView,
    PeopleView,
    AuditView,
    UploadsView,
    AccountsView,
    DatasetsView,
    PublicationsView,
    EndpointsView,
    SavedViewsView,
    MachineRowsView,
    ApprovalsView,
    ScimRows,
):
    """Implements ports.View. It reads in whatever transaction the database is in."""

    def __init__(self, db: Database) -> None:
        self._db = db
