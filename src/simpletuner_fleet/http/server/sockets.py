"""Opens the sockets a server listens on, and says why when it cannot."""

import errno
import resource
import socket
from contextlib import suppress
from typing import Any

from simpletuner_fleet.core.errors import FleetError

BACKLOG = 4096
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 5, 2, 3
USER_TIMEOUT_MS = 15_000


class CannotListen(FleetError):
    """The server cannot listen on this address."""

    code = "cannot_listen"


class AddressInUse(CannotListen):
    """Another program is already listening on this port."""

    code = "address_in_use"


def listen(host: str, port: int) -> list[socket.socket]:
    """Opens one socket per address of the host, all on one port. Accepted sockets inherit the options."""
    sockets: list[socket.socket] = []
    try:
        for family, address in resolve(host, port):
            sockets.append(_bound(family, (address[0], port or _port_of(sockets), *address[2:]), host))
    except OSError as error:
        for listener in sockets:
            listener.close()
        raise cannot_listen(host, port, error) from error
    return sockets


def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise CannotListen(
            f"The host '{host}' is not known: {error.strerror}.",
            next_step="Use an address of this machine, 127.0.0.1 for this machine alone, or 0.0.0.0 for all.",
        ) from error
    return list(dict.fromkeys((family, address) for family, _, _, _, address in addresses if usable(family)))


def usable(family: socket.AddressFamily) -> bool:
    """Tells whether the kernel supports this family: a host name may have an IPv6 address where the kernel has none."""
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def _port_of(sockets: list[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1]) if sockets else 0


def _bound(family: socket.AddressFamily, address: tuple[Any, ...], host: str) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        notice_dead_peers(listener)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def notice_dead_peers(listener: socket.socket) -> None:
    """Lets the kernel probe connections: a vanished peer sends nothing, and pings to it fail only after minutes."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def cannot_listen(host: str, port: int, error: OSError) -> CannotListen:
    match error.errno:
        case errno.EADDRINUSE:
            return AddressInUse(
                f"Port {port} on {host} is in use by another program.",
                next_step=f"Stop that program ('ss -ltnp sport = :{port}' names it) or choose another '--port'.",
            )
        case errno.EACCES | errno.EPERM:
            return CannotListen(
                f"This user may not listen on port {port}.", next_step="Choose a '--port' above 1023."
            )
        case errno.EADDRNOTAVAIL:
            return CannotListen(
                f"{host} is no address of this machine.",
                next_step="Use 0.0.0.0 to listen on every address of this machine.",
            )
    return CannotListen(f"The server cannot listen on {host} port {port}: {error.strerror}.")


def allow_many_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
