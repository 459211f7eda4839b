"""Declares what is kept of the users and groups that a provider describes by SCIM."""

from collections.abc import Collection
from typing import Protocol

from simpletuner_fleet.core.people.scim.resources import ScimKind
from simpletuner_fleet.ports.records import ScimEntry


class ScimRead(Protocol):
    def scim_entry(self, kind: ScimKind, entry_id: str) -> ScimEntry | None: ...
    def scim_entry_by_name(self, kind: ScimKind, name: str) -> ScimEntry | None:
        """Compares names without regard to case."""
        ...

    def scim_entries_by_external_id(self, kind: ScimKind, external_id: str) -> list[ScimEntry]:
        """Returns those whose external id is exactly this, by id. An empty one is nobody's."""
        ...

    def scim_page(self, kind: ScimKind, skip: int, limit: int) -> list[ScimEntry]:
        """Returns them by id. Walks over those that it skips."""
        ...

    def scim_count(self, kind: ScimKind) -> int:
        """Looks at every one of the kind."""
        ...

    def scim_members(self, group_id: str) -> list[str]:
        """Returns the ids of users, in order."""
        ...

    def scim_groups_of(self, user_id: str) -> list[str]:
        """Returns the ids of groups, in order."""
        ...


class ScimWrite(Protocol):
    def put_scim_entry(self, entry: ScimEntry) -> None:
        """Puts it in place of the one with its kind and id. Raises NameTaken if another of the kind has the name."""
        ...

    def delete_scim_entry(self, kind: ScimKind, entry_id: str) -> None: ...
    def add_scim_members(self, group_id: str, user_ids: Collection[str]) -> None:
        """Adds these members; who is a member already stays one."""
        ...

    def remove_scim_members(self, group_id: str, user_ids: Collection[str]) -> None: ...
