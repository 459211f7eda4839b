"""Works out the addresses of the server for people, for this machine and for others."""

import argparse
import shlex
import socket
from urllib.parse import parse_qs, urlsplit

from simpletuner_fleet.client.resolve_settings import Rank
from simpletuner_fleet.client.trust import is_loopback
from simpletuner_fleet.core.workers.join_host import join_host
from simpletuner_fleet.http.access.networks import addresses_for_others
from simpletuner_fleet.http.server.serving import Listening
from simpletuner_fleet.languages import _

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def own_url(listening: Listening, plain_for_loopback: bool = False) -> str:
    """Returns the address at which this machine itself reaches the server."""
    host = ANY_ADDRESS.get(listening.host, listening.host)
    return Listening(
        host, listening.port, listening.tls and not (plain_for_loopback and is_loopback(host))
    ).url


def internal_url(listening: Listening, database_url: str) -> str:
    """Returns the address at which other machines reach the server: the one it reaches the database from."""
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


def reached_at(args: argparse.Namespace, listening: Listening) -> str:
    """Says at which address other machines reach the server, and how to change that."""
    if args.public_url:
        return str(args.public_url)
    if is_loopback(args.host):
        return _("this machine only; for others start it with: %(line)s", line=line_for_others(args))
    to_join = join_host(args.host, "localhost", addresses_for_others())
    hosts = (to_join.host, *to_join.others)
    first, *others = (Listening(host, listening.port, listening.tls).url for host in hosts)
    if not others:
        return first
    return _("%(first)s or %(others)s (--public-url URL says which)", first=first, others=", ".join(others))


def line_for_others(args: argparse.Namespace) -> str:
    """Returns the command that starts a server, which only its own machine reaches, for others."""
    words = ["simpletuner", "server", "--host", "0.0.0.0", "--port", str(args.port or 8001)]
    if args.sources["data_dir"].rank is Rank.FLAG:
        words += ["--data-dir", args.data_dir]
    return shlex.join(words)


def without_password(url: str) -> str:
    parts = urlsplit(url)
    if not parts.scheme.startswith("postgres"):
        return url
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
