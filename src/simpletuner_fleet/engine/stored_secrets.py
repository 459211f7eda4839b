"""Reads secrets from the store, where each is sealed under its name."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from simpletuner_fleet.ports import Vault, View

SECRET_PREFIX = "secret:"


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


def read_secret(stored: str) -> StoredSecret:
    return msgspec.json.decode(stored, type=StoredSecret)


def secret_value(view: View, vault: Vault | None, name: str) -> str | None:
    """Returns the value, or None where it was deleted or its key is lost."""
    stored = view.setting(SECRET_PREFIX + name)
    return vault.unseal(name, read_secret(stored).sealed) if stored and vault else None


def stored_secrets(view: View, names: Iterable[str]) -> dict[str, StoredSecret]:
    """Returns the secrets that are stored under these names."""
    stored = {name: view.setting(SECRET_PREFIX + name) for name in names}
    return {name: read_secret(text) for name, text in stored.items() if text is not None}
