"""Keeps small secrets in the data folder: they are made once, read again, and readable by their owner only."""

import secrets
from pathlib import Path

from simpletuner_fleet.cli.frame.errors import fail
from simpletuner_fleet.client.private_files import write_private_bytes
from simpletuner_fleet.languages import _

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
SECRET_BYTES = 32


def private_folder(path: Path) -> Path:
    try:
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        path.chmod(PRIVATE_FOLDER)
    except OSError as error:
        raise fail(
            _("the data folder %(path)s is not usable", path=path),
            error.strerror or str(error),
            _("choose another with --data-dir or SIMPLETUNER_HOME"),
            "E_DATA_DIR",
        ) from None
    return path


def read_private(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise fail(
            _("cannot read %(path)s", path=path),
            str(error),
            _("fix or remove %(path)s", path=path),
            "E_DATA_DIR",
        ) from None


def write_private(path: Path, text: str) -> None:
    write_private_bytes(path, (text + "\n").encode())


def stored_secret(path: Path) -> bytes:
    """Returns the secret from which tokens are derived: they stay the same as long as its file exists."""
    text = read_private(path)
    if text is None:
        text = secrets.token_hex(SECRET_BYTES)
        write_private(path, text)
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) < SECRET_BYTES:
        raise fail(
            _("%(path)s is corrupted", path=path),
            _("it must contain %(secret_bytes)s bytes in hexadecimal", secret_bytes=SECRET_BYTES),
            _("restore it from a backup, or remove %(path)s to create a new one", path=path),
            "E_DATA_DIR",
        )
    return secret
