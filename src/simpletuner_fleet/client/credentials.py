"""Keeps the servers that this user has logged in to in `credentials.toml`, which only its owner can read."""

import json
import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from simpletuner_fleet.client.errors import fail
from simpletuner_fleet.client.private_files import write_private_bytes
from simpletuner_fleet.client.troubles import AUTH
from simpletuner_fleet.languages import _
from simpletuner_fleet.settings import values


class Login(NamedTuple):
    token: str
    fingerprint: str | None = None
    ca_cert: str | None = None


class SavedLogins(NamedTuple):
    current: str | None
    servers: dict[str, Login]


def read(file: Path) -> SavedLogins:
    try:
        with file.open("rb") as stream:
            _refuse_if_open_to_others(file, os.fstat(stream.fileno()).st_mode)
            document = tomllib.load(stream)
        servers = {
            url: Login(str(entry["token"]), entry.get("fingerprint"), entry.get("ca_cert"))
            for url, entry in document.get("servers", {}).items()
        }
        current = document.get("current")
        return SavedLogins(current and values.url(current), servers)
    except FileNotFoundError:
        return SavedLogins(None, {})
    except (OSError, ValueError, RecursionError, KeyError, AttributeError, TypeError) as error:
        raise fail(
            _("cannot read %(file)s", file=file),
            str(error),
            _("fix or remove %(file)s, then simpletuner login", file=file),
            "E_CREDENTIALS",
        ) from None


def write(file: Path, credentials: SavedLogins) -> None:
    """Writes the file as a whole or not at all; others cannot read it at any moment.

    It names files in full: the next command runs in another folder.
    """
    lines = [f"current = {_quoted(credentials.current)}"] if credentials.current else []
    for url, login in sorted(credentials.servers.items()):
        lines += ["", f"[servers.{_quoted(url)}]"]
        whole = login._replace(ca_cert=os.path.abspath(login.ca_cert)) if login.ca_cert else login
        lines += [f"{key} = {_quoted(value)}" for key, value in whole._asdict().items() if value]
    with telling_what_cannot_be_written(file):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private_bytes(file, ("\n".join(lines) + "\n").encode())


@contextmanager
def telling_what_cannot_be_written(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise fail(
            _("nothing can be written to %(folder)s", folder=file.parent),
            error.strerror or str(error),
            _("choose a folder that you can write to, on a disk with free space:  df -h"),
            "E_CREDENTIALS",
        ) from None


def _quoted(text: str) -> str:
    """Quotes a text for TOML, which escapes as JSON does, but letters beyond 16 bits, and must escape DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _refuse_if_open_to_others(file: Path, mode: int) -> None:
    if stat.S_IMODE(mode) & 0o077:
        raise fail(
            _("%(file)s can be read by other users", file=file),
            _(
                "its mode is %(mode)s; tokens are only read from a file of mode 0600",
                mode=f"{stat.S_IMODE(mode):04o}",
            ),
            _("chmod 600 %(file)s   (and rotate the tokens in it if others may have read them)", file=file),
            "E_CREDENTIALS_OPEN",
            AUTH,
        )
