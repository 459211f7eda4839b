"""Checks which host names the server answers to, and which pages may change things through a user's browser."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from simpletuner_fleet.http.access.networks import (
    is_loopback,
    machine_addresses,
    machine_names,
    parse_address,
)
from simpletuner_fleet.settings.host_names import as_sent

HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]\\?#,]+)(?::[0-9]{1,5})?", re.ASCII)
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_REMEMBERED = 256


class AllowedHosts:
    """Knows the host names that this server answers to, as a guard against DNS rebinding.

    A page of evil.example whose name points at us still says evil.example. It matters on loopback, where a caller may
    be trusted for being on this machine. A server on the network is reached by names that it cannot know, and
    `any_name` accepts them all: nothing is open there without a session or a token, and the browser keeps the
    session's cookie for the one host it was given at, so a rebound page has none to show.
    """

    def __init__(self, configured: Iterable[str] = (), any_name: bool = False) -> None:
        self.configured = frozenset(plain_name(as_sent(name)) for name in configured)
        own = ("localhost", *machine_names(), *machine_addresses())
        self._names = self.configured | {plain_name(name) for name in own}
        self._any_name = any_name
        self._accepted: set[str] = set()

    def holds(self, host_header: str | None) -> bool:
        if host_header in self._accepted:
            return True
        name = host_name(host_header)
        if name is None or not self._known(name):
            return False
        if host_header and len(self._accepted) < MAX_REMEMBERED:
            self._accepted.add(host_header)
        return True

    def _known(self, name: str) -> bool:
        if self._any_name:
            return True
        address = parse_address(name)
        if address is None:
            return name in self._names
        return address.is_loopback or str(address) in self._names


def host_name(host_header: str | None) -> str | None:
    """Returns the name without port and brackets; None if the header is missing, doubled or not a host."""
    match = HOST.fullmatch(host_header or "")
    return plain_name(match[1]) if match else None


def plain_name(name: str) -> str:
    return name.strip("[]").lower().removesuffix(".")


def names_loopback(host_header: str | None) -> bool:
    name = host_name(host_header)
    return name is not None and (name == "localhost" or is_loopback(name))


def comes_from_browser(headers: Mapping[str, str]) -> bool:
    return "origin" in headers or any(name.startswith("sec-fetch-") for name in headers)


def is_foreign(method: str, headers: Mapping[str, str], hosts: AllowedHosts) -> bool:
    """Tells whether a page of another site asks for a change."""
    if method in SAFE_METHODS:
        return False
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and not own_origin(origin, headers.get("host", ""), hosts)


def proves_own_page(method: str, headers: Mapping[str, str], hosts: AllowedHosts) -> bool:
    """Tells whether the browser says that a page of ours asks for the change.

    A cookie is sent with every request, so a change by cookie needs this proof.
    """
    if method in SAFE_METHODS:
        return True
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "same-origin") or (site is None and origin is None):
        return False
    return origin is None or own_origin(origin, headers.get("host", ""), hosts)


def own_origin(origin: str, host_header: str, hosts: AllowedHosts) -> bool:
    try:
        site = urlsplit(origin)
        name = site.hostname
    except ValueError:
        return False
    if site.scheme not in ("http", "https") or name is None:
        return False
    return site.netloc.lower() == host_header.lower() or plain_name(name) in hosts.configured
