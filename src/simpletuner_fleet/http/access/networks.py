"""Finds the caller's address behind proxies, checks the networks of workers, and lists this machine's addresses."""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from simpletuner_fleet.core.errors import FleetError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_FORWARDED_HOPS = 32
SIOCGIFADDR = 0x8915
BRIDGES = ("docker", "br-", "veth", "virbr", "cni", "flannel", "podman", "lxc", "lxd")
"""How interfaces begin behind which there are only containers of the same machine."""
FAR_AWAY = "198.51.100.1"
"""An address that is nobody's (RFC 5737)."""


class BadNetwork(FleetError):
    """This is not a network."""

    code = "bad_network"
    next_step = "Write networks as '10.0.0.0/8' or 'fd00::/8', separated by commas."


class Networks:
    """Holds a set of IP networks of both families. IPv4 addresses inside IPv6 count as IPv4 addresses."""

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        self._networks = tuple(networks)

    @classmethod
    def parse(cls, text: str) -> "Networks":
        return cls(parse_network(part) for part in text.replace(",", " ").split())

    def __bool__(self) -> bool:
        return bool(self._networks)

    def holds(self, address: str) -> bool:
        parsed = parse_address(address)
        return parsed is not None and any(parsed in network for network in self._networks)


def parse_network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise BadNetwork(f"'{text}' is not a network.") from error
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped:
            return ipaddress.IPv4Network((mapped, network.prefixlen - 96))
    return network


def parse_address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def is_loopback(text: str) -> bool:
    address = parse_address(text)
    return address is not None and address.is_loopback


def client_address(peer: str, forwarded_for: str | None, proxies: Networks) -> str:
    """Returns the peer, or the right-most hop that is not one of our proxies: anyone can invent what is left of it."""
    if not proxies and ":" not in peer:
        return peer
    address = parse_address(peer)
    if address is None:
        return peer
    if not forwarded_for or not proxies or not proxies.holds(peer):
        return str(address)
    for hop in reversed(forwarded_for.split(",")[-MAX_FORWARDED_HOPS:]):
        hop_address = parse_address(without_port(hop.strip()))
        if hop_address is None:
            break
        address = hop_address
        if not proxies.holds(str(hop_address)):
            break
    return str(address)


def without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def machine_names() -> list[str]:
    """Returns the names of this machine, without asking a name server."""
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    return [known for known in dict.fromkeys((name, short, f"{short}.local")) if short]


def machine_addresses() -> list[str]:
    """Returns every address of this machine's interfaces, loopback first."""
    addresses = ["127.0.0.1", "::1", *_ipv4_addresses(), *_ipv6_addresses()]
    return list(dict.fromkeys(addresses))


def addresses_for_others() -> list[str]:
    """Returns addresses at which others reach this machine, without container bridges; the default route's is first."""
    way_out = _way_out()
    addresses = [*_ipv4_addresses(skip=BRIDGES), *(one for one in _ipv6_addresses() if one != "::1")]
    kept = [one for one in dict.fromkeys(addresses) if not is_loopback(one)]
    return sorted(kept, key=lambda one: (one != way_out, ":" in one))


def _way_out() -> str:
    """Returns the address that the default route begins at. It sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((FAR_AWAY, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _ipv4_addresses(skip: tuple[str, ...] = ()) -> list[str]:
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, interface in socket.if_nameindex():
            if interface.startswith(skip):
                continue
            request = struct.pack("256s", interface.encode()[:15])
            with suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
                addresses.append(socket.inet_ntoa(answer[20:24]))
    return addresses


def _ipv6_addresses() -> list[str]:
    """Returns the IPv6 addresses except link-local ones, which nobody can reach by address alone."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    addresses = [ipaddress.IPv6Address(int(line.split()[0], 16)) for line in lines]
    return [str(address) for address in addresses if not address.is_link_local]
