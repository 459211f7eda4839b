"""Addresses of the server as people and programs on this machine read them."""

import socket
from urllib.parse import parse_qs, urlsplit

from simpletuner_fleet.client.trust import is_loopback
from simpletuner_fleet.http.server.serving import Listening

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def own_url(listening: Listening, plain_for_loopback: bool = False) -> str:
    """Returns the address at which this machine itself reaches the server."""
    host = ANY_ADDRESS.get(listening.host, listening.host)
    return Listening(
        host, listening.port, listening.tls and not (plain_for_loopback and is_loopback(host))
    ).url


def internal_url(listening: Listening, database_url: str) -> str:
    """Returns the address at which other machines reach the server: the one that it reaches the database from."""
    if listening.host not in ANY_ADDRESS:
        return listening.url
    return Listening(_address_towards(_host_of(database_url)), listening.port, listening.tls).url


def _host_of(database_url: str) -> str:
    parts = urlsplit(database_url)
    named = parse_qs(parts.query).get("host", [parts.hostname or ""])[0]
    return "" if named.startswith("/") else named.split(",")[0]


def _address_towards(host: str) -> str:
    if host:
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # nothing is sent: this only chooses the way
                return str(probe.getsockname()[0])
        except OSError:
            pass
    return "127.0.0.1"


def without_password(url: str) -> str:
    parts = urlsplit(url)
    if not parts.scheme.startswith("postgres"):
        return url
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
