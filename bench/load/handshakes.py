"""Measures what a resumed TLS handshake costs the server's side in OpenSSL alone: no socket, no event loop, no request."""

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from simpletuner_fleet.http.server.tls import private_authority, server_context

T = TypeVar("T")
READ_BYTES = 64 * 1024


def handshakes_per_cpu_s(folder: Path, count: int) -> float:
    """Returns how many handshakes one core could make, each resuming the session of the one before."""
    files = private_authority(folder)
    server, client = server_context(files), ssl.create_default_context(cafile=str(files.ca))
    session: ssl.SSLSession | None = None
    cpu_ns = resumed = 0
    for _ in range(count):
        pair = HandshakePair(server, client, session)
        session = pair.shake_hands()
        cpu_ns += pair.server_ns
        resumed += pair.resumed
    if resumed < count - 1:
        raise RuntimeError(f"{count - resumed} of {count} sessions were not resumed")
    return count / (cpu_ns / 1e9)


class HandshakePair:
    """Connects a client and a server in memory, and counts the CPU time of the server's side."""

    def __init__(
        self, server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None
    ) -> None:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server_ns = 0
        self.resumed = False
        self._server = self._counted(lambda: server.wrap_bio(to_server, to_client, server_side=True))
        self._client = client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)

    def shake_hands(self) -> ssl.SSLSession | None:
        """Returns the session to resume next, once both sides have also sent and read a message."""
        done = False
        while not done:
            client_done = _stepped(self._client.do_handshake)
            done = self._counted(lambda: _stepped(self._server.do_handshake)) and client_done
        self._client.write(b"request")
        self._counted(lambda: (self._server.read(READ_BYTES), self._server.write(b"answer")))
        self._client.read(READ_BYTES)
        self.resumed = bool(self._client.session_reused)
        return self._client.session

    def _counted(self, work: Callable[[], T]) -> T:
        began = time.process_time_ns()
        try:
            return work()
        finally:
            self.server_ns += time.process_time_ns() - began


def _stepped(handshake: Callable[[], None]) -> bool:
    """Returns whether that was its last step."""
    try:
        handshake()
    except ssl.SSLWantReadError:
        return False
    return True
