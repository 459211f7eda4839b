"""Finds out which server a command talks to, with which token and trust. Each value says where it came from."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlsplit

from simpletuner_fleet.client import credentials, resolve_settings
from simpletuner_fleet.client.errors import fail
from simpletuner_fleet.client.resolve_settings import Resolved
from simpletuner_fleet.client.troubles import AUTH
from simpletuner_fleet.client.trust import Choices, is_loopback
from simpletuner_fleet.languages import _

DEFAULT_PORT = 8001
LOCAL_WORKER_PROBLEM = "local_worker.problem"
"""In the data folder: why there is no worker beside the server."""


class ConnectionSettings(NamedTuple):
    url: str
    url_from: str
    token: str | None
    token_from: str
    trust: Choices
    trust_from: str
    notes: list[str]
    further_urls: tuple[str, ...] = ()
    """Where the same fleet has other orchestrators."""


class LocalServer(NamedTuple):
    """Says how to reach a server on this machine, as the server wrote it into its data folder."""

    url: str | None
    fingerprint: str | None
    ca_cert: str | None
    admin_token: Path


def find(args: object, environ: Mapping[str, str] = os.environ) -> ConnectionSettings:
    resolved, notes = resolve_settings.resolve("client", args, environ)
    logins = credentials.read(credentials_file(environ))
    local = local_server(Path(resolved["data_dir"].value))
    addresses, url_from = _url(resolved, logins, local)
    url, *further = addresses.split(",")
    token, token_from = _token(url, resolved, logins, local)
    trust, trust_from = _trust(url, resolved, logins, local)
    return ConnectionSettings(url, url_from, token, token_from, trust, trust_from, notes, tuple(further))


def given(**values: object) -> ConnectionSettings:
    """Finds the same for a Python program, whose arguments take the place of the command line's flags."""
    texts = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    return find(SimpleNamespace(**texts))


def authorization(where: ConnectionSettings) -> dict[str, str]:
    """Returns the header with the token. Raises for a token that no header can hold, and does not repeat it."""
    if not where.token:
        return {}
    if not where.token.isascii() or not where.token.isprintable() or " " in where.token:
        raise fail(
            _("Invalid token"),
            _("it has a character that no token has (it came from: %(where)s)", where=where.token_from),
            (
                _("check for whitespace in the token string"),
                _("log in again: simpletuner login %(url)s", url=where.url),
            ),
            "E_INVALID_TOKEN",
            AUTH,
        )
    return {"Authorization": f"Bearer {where.token}"}


def credentials_file(environ: Mapping[str, str] = os.environ) -> Path:
    return resolve_settings.config_home(environ) / "credentials.toml"


def local_server(data_dir: Path) -> LocalServer:
    try:
        document = json.loads((data_dir / "server.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        document = {}
    ca_cert = data_dir / "tls" / "ca.pem"
    return LocalServer(
        url=document["url"].rstrip("/")
        if isinstance(document, dict) and isinstance(document.get("url"), str)
        else None,
        fingerprint=document.get("fingerprint") if isinstance(document, dict) else None,
        ca_cert=str(ca_cert) if ca_cert.is_file() else None,
        admin_token=data_dir / "admin_token",
    )


def _url(
    resolved: dict[str, Resolved], logins: credentials.SavedLogins, local: LocalServer
) -> tuple[str, str]:
    setting = resolved["url"]
    if setting.value:
        return setting.value, setting.source.where
    if logins.current:
        return logins.current, _("login")
    if local.url:
        return local.url, _("server on this machine")
    scheme = "https" if local.ca_cert else "http"
    return f"{scheme}://127.0.0.1:{DEFAULT_PORT}", _("default")


def _token(
    url: str, resolved: dict[str, Resolved], logins: credentials.SavedLogins, local: LocalServer
) -> tuple[str | None, str]:
    setting = resolved["api_token"]
    if setting.value:
        return setting.value, setting.source.where
    if url in logins.servers:
        return logins.servers[url].token, _("login")
    if is_local(url, local):
        try:
            return local.admin_token.read_text(encoding="utf-8").strip() or None, _(
                "file %(path)s", path=local.admin_token
            )
        except (OSError, UnicodeDecodeError):
            pass
    return None, _("nowhere")


def _trust(
    url: str, resolved: dict[str, Resolved], logins: credentials.SavedLogins, local: LocalServer
) -> tuple[Choices, str]:
    for name, choice in (
        ("ssl_fingerprint", "fingerprint"),
        ("ca_cert", "ca_cert"),
        ("ssl_no_verify", "no_verify"),
    ):
        if resolved[name].value:
            return Choices()._replace(**{choice: resolved[name].value}), resolved[name].source.where
    if not url.startswith("https:"):
        return Choices(plain_http=resolved["plain_http"].value), _("no TLS")
    login = logins.servers.get(url)
    if login and (login.fingerprint or login.ca_cert):
        return Choices(login.fingerprint, login.ca_cert), _("login")
    if is_local(url, local):
        if local.ca_cert:
            return Choices(ca_cert=local.ca_cert), _("file %(path)s", path=local.ca_cert)
        if local.fingerprint:
            return Choices(fingerprint=local.fingerprint), _("server on this machine")
    return Choices(), _("system trust store")


def is_local(url: str, local: LocalServer) -> bool:
    """Tells whether this machine's admin token may be sent to the URL: only to that very server, and no other port."""
    address = urlsplit(url)
    if local.url is None:
        return is_loopback(address.hostname or "") and address.port == DEFAULT_PORT
    own = urlsplit(local.url)
    same_host = address.hostname == own.hostname or is_loopback(address.hostname or "")
    return same_host and (address.scheme, address.port) == (own.scheme, own.port)
