"""A server that answers every request a byte at a time, and never to the end."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat

EVERY_S = 0.02
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
DRIPS = {
    "status line": (b"", b"H"),
    "headers": (HEAD + b"X-More: ", b"x"),
    "body": (HEAD + b"Content-Length: 1000000000\r\n\r\n", b" "),
    "size of a chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x"),
    "small chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "refusal": (b"HTTP/1.1 503 Busy\r\nContent-Length: 1000000000\r\n\r\n", b" "),
}


@contextmanager
def dripping(
    kind: str, context: ssl.SSLContext | None = None, content_type: str = "application/json"
) -> Iterator[str]:
    """Yields the address of a server that sends the beginning at once, then one drop after the other."""
    beginning, drop = DRIPS[kind]
    drip = beginning.replace(b"application/json", content_type.encode()), drop
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(0.05)
        taking = threading.Thread(target=_take, args=(door, over, drip, context))
        taking.start()
        try:
            scheme = "https" if context else "http"
            yield f"{scheme}://127.0.0.1:{door.getsockname()[1]}"
        finally:
            over.set()
            taking.join()


def _take(
    door: socket.socket, over: threading.Event, drip: tuple[bytes, bytes], context: ssl.SSLContext | None
) -> None:
    guests: list[threading.Thread] = []
    while not over.is_set():
        with suppress(TimeoutError):
            line = door.accept()[0]
            guests.append(threading.Thread(target=_drip, args=(line, over, drip, context)))
            guests[-1].start()
    for guest in guests:
        guest.join()


def _drip(
    line: socket.socket, over: threading.Event, drip: tuple[bytes, bytes], context: ssl.SSLContext | None
) -> None:
    beginning, drop = drip
    with suppress(OSError), line:
        line.settimeout(5.0)
        spoken = context.wrap_socket(line, server_side=True) if context else line
        with spoken:
            spoken.recv(65536)
            for piece in chain([beginning], repeat(drop)):
                if over.wait(EVERY_S):
                    return
                spoken.sendall(piece)
