"""Listens on one port of 127.0.0.1 for the result of a log-in, and closes it once the browser has brought that."""

import threading
from concurrent.futures import Future
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from types import TracebackType
from typing import Self

from simpletuner_fleet.core.people.sign_in import loopback
from simpletuner_fleet.core.people.sign_in.loopback import LoopbackAnswer

ANSWERED_WITHIN_S = 20.0
"""How long the browser is kept waiting for what came of its answer."""


class LoopbackListener:
    """Listens on a local port for the result of a log-in, which the browser brings.

    It takes the first result that fits the state; every other request gets 404 and changes nothing.
    """

    def __init__(self, state: str) -> None:
        self._state = state
        self._answer: Future[LoopbackAnswer] = Future()
        self._next_page: Future[str] = Future()
        self._told = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server((loopback.HOST, 0), self)
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def wait(self, within_s: float) -> LoopbackAnswer:
        """Returns the result, after which the port is closed. Raises TimeoutError if none comes."""
        answer = self._answer.result(within_s)
        self._close()
        return answer

    def send_on(self, page: str) -> None:
        """Redirects the browser that brought the result to this page."""
        self._next_page.set_result(page)
        self._told.wait(ANSWERED_WITHIN_S)

    def take(self, host: str | None, target: str) -> bool:
        """Takes a result sent to our own host and port: other sites can send requests here, by their own names."""
        if host != f"{loopback.HOST}:{self.port}":
            return False
        answer = loopback.answer_in(target, self._state)
        with self._lock:
            if answer is None or self._answer.done():
                return False
            self._answer.set_result(answer)
            return True

    def next_page(self) -> str:
        return self._next_page.result(ANSWERED_WITHIN_S)

    def browser_left(self) -> None:
        self._told.set()

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], listener: LoopbackListener) -> None:
        self.listener = listener
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores a browser that disconnects in between."""


class _Handler(BaseHTTPRequestHandler):
    timeout = ANSWERED_WITHIN_S
    server: _Server

    def do_GET(self) -> None:
        listener = self.server.listener
        if not listener.take(self.headers.get("Host"), self.path):
            self._say(HTTPStatus.NOT_FOUND)
            return
        try:
            self._say(HTTPStatus.SEE_OTHER, listener.next_page())
        finally:
            listener.browser_left()

    def version_string(self) -> str:
        return "simpletuner"

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing, since the address contains the code, which must not be in any log."""

    def _say(self, status: HTTPStatus, page: str = "") -> None:
        self.send_response(status)
        if page:
            self.send_header("Location", page)
        self.send_header("Content-Length", "0")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Connection", "close")
        self.end_headers()
