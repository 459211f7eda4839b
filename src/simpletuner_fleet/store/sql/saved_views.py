"""Stores the lists of jobs that people have named, in any SQL database."""

from simpletuner_fleet.ports import SavedView
from simpletuner_fleet.store.rows.text import storable
from simpletuner_fleet.store.sql.database import Database

_OF = "SELECT owner, name, query, created_at FROM job_views WHERE owner = :owner"
_PUT = (
    "INSERT INTO job_views (owner, name, query, created_at) VALUES (:owner, :name, :query, :created_at)"
    " ON CONFLICT (owner, name) DO UPDATE SET query = excluded.query, created_at = excluded.created_at"
)
_DELETE = "DELETE FROM job_views WHERE owner = :owner AND name = :name"


class SavedViewsView:
    _db: Database

    def saved_views(self, owner: str) -> list[SavedView]:
        rows = self._db.rows(_OF, {"owner": owner})
        views = [SavedView(owner=row[0], name=row[1], query=row[2], created_at=row[3]) for row in rows]
        return sorted(views, key=lambda view: view.name)


class SavedViewsTx(SavedViewsView):
    def put_saved_view(self, view: SavedView) -> None:
        self._db.run(
            _PUT,
            {
                "owner": view.owner,
                "name": storable(view.name),
                "query": storable(view.query),
                "created_at": float(view.created_at),
            },
        )

    def delete_saved_view(self, owner: str, name: str) -> None:
        self._db.run(_DELETE, {"owner": owner, "name": name})
