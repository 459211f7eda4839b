"""Finds the key that signs heads of the audit log."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from simpletuner_fleet.cli.frame.errors import fail
from simpletuner_fleet.languages import _
from simpletuner_fleet.storage.audit.heads import signing_key


def stored_audit_key(path: Path) -> Ed25519PrivateKey:
    """Returns the key. A damaged file is not replaced by itself: what its key has signed would count as forged."""
    try:
        return signing_key(path)
    except ValueError as error:
        raise fail(
            _("%(path)s is corrupted", path=path),
            str(error),
            _("restore it from a backup, or remove %(path)s to create a new one", path=path),
            "E_DATA_DIR",
        ) from None
