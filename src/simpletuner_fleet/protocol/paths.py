"""Names both ends of a connection, so that the two sides can find out whether something stands in between."""

import asyncio
import ipaddress
from typing import Any


def ends_of(transport: asyncio.BaseTransport, *, client: bool) -> str:
    """Returns the caller's and the server's address with their ports, or '' where they have none.

    Both ends write the same where one connection goes from the one to the other. A forwarder, a load balancer, a proxy
    or a translated address makes it two connections, or two names of one end, and then they write different things.
    """
    here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    caller, server = (here, there) if client else (there, here)
    ends = [_written(end) for end in (caller, server)]
    return " ".join(ends) if all(ends) else ""


def _written(end: Any) -> str:
    if not isinstance(end, tuple) or len(end) < 2:
        return ""
    address = ipaddress.ip_address(str(end[0]).partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return f"{mapped or address}|{end[1]}"


def server_of(ends: str) -> tuple[str, int] | None:
    """Returns the server's end, to connect to."""
    _, _, server = ends.partition(" ")
    host, _, port = server.partition("|")
    return (host, int(port)) if port else None
