"""Secrets as they lie in the store: sealed, each under its name."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from simpletuner_fleet.ports import Vault, View

SECRET_PREFIX = "secret:"


class StoredSecret(Struct, frozen=True, kw_only=True):
    """One version of a secret, which `created_at` and `created_by` belong to."""

    version: int
    created_at: float
    created_by: str
    sealed: str


def read_secret(stored: str) -> StoredSecret:
    return msgspec.json.decode(stored, type=StoredSecret)


def secret_value(view: View, vault: Vault | None, name: str) -> str | None:
    """Returns the value, or None where it was deleted or its key is lost."""
    stored = view.setting(SECRET_PREFIX + name)
    return vault.unseal(name, read_secret(stored).sealed) if stored and vault else None


def stored_secrets(view: View, names: Iterable[str]) -> frozenset[str]:
    """Returns those of the names under which a secret is stored."""
    return frozenset(name for name in names if view.setting(SECRET_PREFIX + name) is not None)
