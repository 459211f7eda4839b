"""Addresses of the server as people and programs on this machine read them."""

from urllib.parse import urlsplit

from simpletuner_fleet.client.trust import is_loopback
from simpletuner_fleet.http.server.serving import Listening

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def own_url(listening: Listening, plain_for_loopback: bool = False) -> str:
    """Returns the address at which this machine itself reaches the server."""
    host = ANY_ADDRESS.get(listening.host, listening.host)
    return Listening(
        host, listening.port, listening.tls and not (plain_for_loopback and is_loopback(host))
    ).url


def without_password(url: str) -> str:
    parts = urlsplit(url)
    if not parts.scheme.startswith("postgres"):
        return url
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
