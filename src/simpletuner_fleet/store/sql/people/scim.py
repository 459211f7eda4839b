"""Stores the users and groups that a provider provisions by SCIM, in any SQL database."""

from collections.abc import Collection

from simpletuner_fleet.core.errors import NameTaken
from simpletuner_fleet.core.people.scim.resources import ScimKind
from simpletuner_fleet.ports import ScimEntry
from simpletuner_fleet.store.failures import Duplicate
from simpletuner_fleet.store.rows.text import name_key, storable
from simpletuner_fleet.store.sql.database import Database, Row

_ENTRY = "SELECT kind, id, document, external_id, name FROM scim_entries WHERE kind = :kind"
_BY_ID = f"{_ENTRY} AND id = :id"
_BY_NAME = f"{_ENTRY} AND name_key = :name_key"
_BY_EXTERNAL_ID = f"{_ENTRY} AND external_id = :external_id AND external_id <> '' ORDER BY id"
_PAGE = f"{_ENTRY} ORDER BY id LIMIT :limit OFFSET :skip"
_COUNT = "SELECT COUNT(*) FROM scim_entries WHERE kind = :kind"
_PUT = (
    "INSERT INTO scim_entries (kind, id, name, name_key, external_id, document)"
    " VALUES (:kind, :id, :name, :name_key, :external_id, :document)"
    " ON CONFLICT (kind, id) DO UPDATE SET name = excluded.name, name_key = excluded.name_key,"
    " external_id = excluded.external_id, document = excluded.document"
)
_DELETE = "DELETE FROM scim_entries WHERE kind = :kind AND id = :id"
_MEMBERS = "SELECT user_id FROM scim_members WHERE group_id = :id ORDER BY user_id"
_GROUPS = "SELECT group_id FROM scim_members WHERE user_id = :id ORDER BY group_id"
_ADD_MEMBER = (
    "INSERT INTO scim_members (group_id, user_id) VALUES (:group_id, :user_id) ON CONFLICT DO NOTHING"
)
_REMOVE_MEMBER = "DELETE FROM scim_members WHERE group_id = :group_id AND user_id = :user_id"


class ScimRows:
    _db: Database

    def scim_entry(self, kind: ScimKind, entry_id: str) -> ScimEntry | None:
        row = self._db.row(_BY_ID, {"kind": str(kind), "id": storable(entry_id)})
        return _entry_of(row) if row else None

    def scim_entry_by_name(self, kind: ScimKind, name: str) -> ScimEntry | None:
        row = self._db.row(_BY_NAME, {"kind": str(kind), "name_key": name_key(name)})
        return _entry_of(row) if row else None

    def scim_entries_by_external_id(self, kind: ScimKind, external_id: str) -> list[ScimEntry]:
        asked = {"kind": str(kind), "external_id": storable(external_id)}
        return [_entry_of(row) for row in self._db.rows(_BY_EXTERNAL_ID, asked)]

    def scim_page(self, kind: ScimKind, skip: int, limit: int) -> list[ScimEntry]:
        asked = {"kind": str(kind), "skip": skip, "limit": limit}
        return [_entry_of(row) for row in self._db.rows(_PAGE, asked)]

    def scim_count(self, kind: ScimKind) -> int:
        row = self._db.row(_COUNT, {"kind": str(kind)})
        return int(row[0]) if row else 0

    def scim_members(self, group_id: str) -> list[str]:
        return [row[0] for row in self._db.rows(_MEMBERS, {"id": storable(group_id)})]

    def scim_groups_of(self, user_id: str) -> list[str]:
        return [row[0] for row in self._db.rows(_GROUPS, {"id": storable(user_id)})]


class ScimRowsTx(ScimRows):
    def put_scim_entry(self, entry: ScimEntry) -> None:
        written = {
            "kind": str(entry.kind),
            "id": entry.id,
            "name": storable(entry.name),
            "name_key": name_key(entry.name),
            "external_id": storable(entry.external_id),
            "document": storable(entry.document),
        }
        other = self.scim_entry_by_name(entry.kind, entry.name)
        if other and other.id != entry.id:
            raise scim_name_taken(entry)
        try:
            self._db.run(_PUT, written)
        except Duplicate:
            raise scim_name_taken(entry) from None

    def delete_scim_entry(self, kind: ScimKind, entry_id: str) -> None:
        self._db.run(_DELETE, {"kind": str(kind), "id": storable(entry_id)})

    def add_scim_members(self, group_id: str, user_ids: Collection[str]) -> None:
        self._db.many(_ADD_MEMBER, [{"group_id": group_id, "user_id": one} for one in user_ids])

    def remove_scim_members(self, group_id: str, user_ids: Collection[str]) -> None:
        self._db.many(_REMOVE_MEMBER, [{"group_id": group_id, "user_id": storable(one)} for one in user_ids])


def scim_name_taken(entry: ScimEntry) -> NameTaken:
    return NameTaken(f"Another {entry.kind} has the name '{entry.name}'.")


def _entry_of(row: Row) -> ScimEntry:
    return ScimEntry(kind=ScimKind(row[0]), id=row[1], document=row[2], external_id=row[3], name=row[4])
