"""Looks names up in threads that nothing else works in: a name server that hangs holds up nobody else's work."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

RESOLVERS = 64
"""There are far more than one person has endpoints: their names alone never keep all threads."""

AddressRow = tuple[Any, Any, int, str, Any]
"""Its family, kind and protocol, a name that is not asked for, and the address, as `socket.getaddrinfo` gives them."""
Asked = tuple[bytes | str | None, bytes | str | int | None, int, int, int, int]
"""All that `socket.getaddrinfo` is asked, in its order."""


class NameThreads:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="names")
        self._look_ups: dict[Asked, asyncio.Future[list[AddressRow]]] = {}
        """Those under way: a thread cannot be called off, and who tries again does not get a second one."""

    async def look_up(self, *asked: *Asked) -> list[AddressRow]:
        look_up = self._look_ups.get(asked)
        if look_up is None:
            look_up = asyncio.get_running_loop().run_in_executor(self._threads, _rows, asked)
            self._look_ups[asked] = look_up
            look_up.add_done_callback(partial(self._looked_up, asked))
        return await asyncio.shield(look_up)

    def _looked_up(self, asked: Asked, look_up: asyncio.Future[list[AddressRow]]) -> None:
        del self._look_ups[asked]
        if not look_up.cancelled():
            look_up.exception()  # whoever asked may have gone meanwhile

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _rows(asked: Asked) -> list[AddressRow]:
    host, port, family, kind, proto, flags = asked
    return [*socket.getaddrinfo(host, port, type=kind, family=family, proto=proto, flags=flags)]
