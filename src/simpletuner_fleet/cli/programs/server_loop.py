"""Makes the event loop of the server."""

from socket import AddressFamily

import uvloop

from simpletuner_fleet.delivery.names import AddressRow, NameThreads


class ServerLoop(uvloop.Loop):
    """Looks names up in many threads, and each name once at a time.

    The library below has four of them for the whole process: as many names of one cloud that nobody resolves would keep
    the storage, the other clouds and everybody who logs in with a provider from being found.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names = NameThreads()

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = AddressFamily.AF_UNSPEC,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[AddressRow]:
        return await self._names.look_up(host, port, family, type, proto, flags)

    def close(self) -> None:
        self._names.close()
        super().close()
