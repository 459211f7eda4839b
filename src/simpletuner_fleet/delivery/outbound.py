"""Decides which machines may be called: public ones, and those in the networks that the server's owner has named.

A name is resolved once and the connection goes to the address that was checked, so that a name which means another
machine a moment later gains nothing.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property

from simpletuner_fleet.delivery.names import NameThreads
from simpletuner_fleet.delivery.outcome import DeliveryFailed

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All that is given to anybody. Beside it stand site-local addresses and several that translate to one of IPv4."""
NOT_FOR_EVERYBODY = tuple(
    map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20"))
)
"""What some versions of Python take for public: a cloud's own services, relays, tunnels, and what is for documents."""
READ_LIMIT_BYTES = 64 * 1024


class OutboundConnector:
    def __init__(
        self, allowed: Sequence[Network] = (), ca_file: str | None = None, resolve: Resolve | None = None
    ) -> None:
        self._allowed = tuple(allowed)
        self._resolve = resolve or self._look_up
        self._names = NameThreads()
        self._ca_file = ca_file
        if ca_file:
            _ = self.trust  # a file that cannot be read is told at the start

    @cached_property
    def trust(self) -> ssl.SSLContext:
        """Reads whom this machine trusts, and the given authority, when it is first asked for: it takes a while."""
        context = ssl.create_default_context()
        if self._ca_file:
            context.load_verify_locations(self._ca_file)
        return context

    def close(self) -> None:
        self._names.close()

    async def allowed_address(self, host: str, port: int, *, tls: bool) -> Address:
        """Returns an address that this name means and that may be called. Raises DeliveryFailed where there is none."""
        try:
            texts = await self._resolve(host, port)
        except (OSError, UnicodeError):  # the latter for what is no name, such as one with two dots in a row
            raise DeliveryFailed("Its name cannot be resolved.") from None
        addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in texts]
        if not addresses:
            raise DeliveryFailed("Its name cannot be resolved.")
        for address in addresses:
            if not self._may_call(address):
                raise DeliveryFailed(
                    "Its address lies in a private network; the server's owner may allow that with --notify-network."
                )
        if not tls and not all(self._is_named(address) for address in addresses):
            raise DeliveryFailed("Without TLS only networks named by --notify-network are called.")
        return addresses[0]

    async def connect(self, host: str, port: int, *, tls: bool) -> Streams:
        """Connects to an allowed address. Raises DeliveryFailed where nobody may be called there, or nobody answers.

        The caller bounds the time.
        """
        address = await self.allowed_address(host, port, tls=tls)
        trust = await asyncio.to_thread(lambda: self.trust) if tls else None
        try:
            return await asyncio.open_connection(
                str(address),
                port,
                ssl=trust,
                server_hostname=host if tls else None,
                limit=READ_LIMIT_BYTES,
            )
        except ssl.SSLCertVerificationError as error:
            raise DeliveryFailed(f"Its certificate is not trusted: {error.verify_message}.") from None
        except (OSError, ssl.SSLError) as error:
            raise DeliveryFailed(f"No connection: {_named(error)}.") from None

    async def open_relay(self, host: str, port: int, *, tls: bool) -> Streams:
        """Connects to the mail server, which the server's owner has set: any address is good.

        Its name is looked up like any other, and not in the threads that the rest of the server works in.
        """
        trust = await asyncio.to_thread(lambda: self.trust) if tls else None
        failure: OSError | UnicodeError = OSError("no address")
        try:
            for address in await self._resolve(host, port):
                try:
                    return await asyncio.open_connection(
                        address, port, ssl=trust, server_hostname=host if tls else None
                    )
                except OSError as error:
                    failure = error
        except (OSError, UnicodeError) as error:
            failure = error
        raise DeliveryFailed(f"The mail server cannot be reached: {_named(failure)}.")

    async def secure(self, writer: asyncio.StreamWriter, host: str) -> None:
        trust = await asyncio.to_thread(lambda: self.trust)
        try:
            await writer.start_tls(trust, server_hostname=host)
        except (OSError, ssl.SSLError) as error:
            raise DeliveryFailed(f"The mail server's TLS failed: {_named(error)}.") from None

    def _may_call(self, address: Address) -> bool:
        return is_public(address) or self._is_named(address)

    def _is_named(self, address: Address) -> bool:
        inner = _unwrapped(address)
        return any(inner in network for network in self._allowed)

    async def _look_up(self, host: str, port: int) -> list[str]:
        rows = await self._names.look_up(host, port, 0, socket.SOCK_STREAM, 0, 0)
        return list(dict.fromkeys(str(row[4][0]) for row in rows))


def is_public(address: Address) -> bool:
    """Returns whether the address is public. One that stands for another, as in IPv6, is judged by that one."""
    inner = _unwrapped(address)
    if isinstance(inner, ipaddress.IPv6Address) and inner not in GLOBAL_UNICAST:
        return False
    return inner.is_global and not inner.is_multicast and not any(inner in one for one in NOT_FOR_EVERYBODY)


def _unwrapped(address: Address) -> Address:
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped:
        return address.ipv4_mapped
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in NAT64 else address


def _named(error: OSError | UnicodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or type(error).__name__
