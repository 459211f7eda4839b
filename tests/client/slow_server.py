"""A server that takes uploads slowly: a drop at a time, and never to the end."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from tests.quiet_server import QuietServer

EVERY_S, DROP_BYTES = 0.05, 1024


class SlowServer:
    """Wants every file it is asked about, and reads what is sent a drop at a time."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.over = threading.Event()
        self.taking = threading.Semaphore(0)
        """Released when an upload has begun."""
        self.looking = threading.Event()
        """Once set, what has arrived is read without a pause, so that the end of it is seen."""
        self.left = threading.Semaphore(0)
        """Released when whoever uploads has gone."""
        self.door = QuietServer(("127.0.0.1", 0), self._handler())
        if context:
            self.door.socket = context.wrap_socket(
                self.door.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.door.server_port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        slow = self

        class Handling(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body = json.dumps({"missing": [{**one, "offset": 0} for one in asked["objects"]]}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_PUT(self) -> None:
                slow.taking.release()
                self.close_connection = True
                try:
                    while not slow.over.is_set() and self.rfile.read1(DROP_BYTES):
                        slow.looking.wait(EVERY_S)
                finally:
                    slow.left.release()

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handling


@contextmanager
def slow_server(context: ssl.SSLContext | None = None) -> Iterator[SlowServer]:
    server = SlowServer(context)
    taking = threading.Thread(target=server.door.serve_forever, kwargs={"poll_interval": 0.01})
    taking.start()
    try:
        yield server
    finally:
        server.over.set()
        server.looking.set()
        server.door.shutdown()
        server.door.server_close()
        taking.join()
