"""Reads secrets from the store, where each is sealed under its name."""

from collections.abc import Iterable

from simpletuner_fleet.core.errors import Conflict
from simpletuner_fleet.core.people.stored_secret import StoredSecret
from simpletuner_fleet.engine.kept_settings import SECRET_PREFIX, decoded, read_setting
from simpletuner_fleet.ports import Vault, View


def unreadable_secret(name: str) -> Conflict:
    return Conflict(
        f"The secret '{name}' is stored, but it cannot be read.",
        next_step=f"Ask an administrator to delete it ('simpletuner secrets delete {name}'); then store it anew.",
    )


def secret_value(view: View, vault: Vault | None, name: str) -> str | None:
    """Returns the value, or None where it was deleted, cannot be read or its key is lost."""
    stored = read_setting(view, SECRET_PREFIX + name, StoredSecret, None)
    return vault.unseal(name, stored.sealed) if stored and vault else None


def stored_secrets(view: View, names: Iterable[str]) -> dict[str, StoredSecret]:
    """Returns the secrets that are stored under these names. Raises Conflict for one that cannot be read."""
    texts = {name: view.setting(SECRET_PREFIX + name) for name in names}
    return {name: read_secret(name, text) for name, text in texts.items() if text is not None}


def read_secret(name: str, stored: str) -> StoredSecret:
    """Raises Conflict for one that cannot be read."""
    secret = decoded(SECRET_PREFIX + name, stored, StoredSecret, None)
    if secret is None:
        raise unreadable_secret(name)
    return secret
