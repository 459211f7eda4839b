"""Describes a secret as it is stored: its value sealed, and whose jobs may have it."""

from msgspec import Struct


class StoredSecret(Struct, frozen=True, kw_only=True):
    """Holds one version of a secret, which `created_at` and `created_by` belong to."""

    version: int
    created_at: float
    created_by: str
    sealed: str
    owner: str = ""
    """The id of who stored it first, and may replace it."""
    users: tuple[str, ...] = ()
    """The ids of the users and tokens whose jobs may have it, beside its owner's; empty: everybody's."""

    def is_for(self, *ids: str) -> bool:
        return not self.users or any(one in self.users or (one and one == self.owner) for one in ids)
