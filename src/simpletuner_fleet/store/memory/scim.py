"""Keeps the users and groups that a provider provisions by SCIM in the memory store."""

from collections.abc import Collection

from simpletuner_fleet.core.errors import NameTaken
from simpletuner_fleet.core.people.scim.resources import ScimKind
from simpletuner_fleet.ports import ScimEntry
from simpletuner_fleet.store.memory.tables import Tables
from simpletuner_fleet.store.rows.text import name_key


class MemoryScimView:
    _tables: Tables

    def scim_entry(self, kind: ScimKind, entry_id: str) -> ScimEntry | None:
        return self._tables.scim_entries.get((kind, entry_id))

    def scim_entry_by_name(self, kind: ScimKind, name: str) -> ScimEntry | None:
        key = name_key(name)
        return next((one for one in self._of(kind) if name_key(one.name) == key), None)

    def scim_entries_by_external_id(self, kind: ScimKind, external_id: str) -> list[ScimEntry]:
        return [one for one in self._of(kind) if one.external_id == external_id and external_id]

    def scim_page(self, kind: ScimKind, skip: int, limit: int) -> list[ScimEntry]:
        return self._of(kind)[skip : skip + limit]

    def scim_count(self, kind: ScimKind) -> int:
        return len(self._of(kind))

    def scim_members(self, group_id: str) -> list[str]:
        return sorted(user for group, user in self._tables.scim_members if group == group_id)

    def scim_groups_of(self, user_id: str) -> list[str]:
        return sorted(group for group, user in self._tables.scim_members if user == user_id)

    def _of(self, kind: ScimKind) -> list[ScimEntry]:
        return [entry for (each, _), entry in sorted(self._tables.scim_entries.items()) if each == kind]


class MemoryScimTx(MemoryScimView):
    def put_scim_entry(self, entry: ScimEntry) -> None:
        other = self.scim_entry_by_name(entry.kind, entry.name)
        if other and other.id != entry.id:
            raise NameTaken(f"Another {entry.kind} has the name '{entry.name}'.")
        self._tables.set_scim_entry((entry.kind, entry.id), entry)

    def delete_scim_entry(self, kind: ScimKind, entry_id: str) -> None:
        self._tables.set_scim_entry((kind, entry_id), None)

    def add_scim_members(self, group_id: str, user_ids: Collection[str]) -> None:
        for one in user_ids:
            self._tables.set_scim_member((group_id, one), True)

    def remove_scim_members(self, group_id: str, user_ids: Collection[str]) -> None:
        for one in user_ids:
            self._tables.set_scim_member((group_id, one), None)
