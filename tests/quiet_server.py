"""A small real HTTP server whose clients may go away."""

import ssl
import sys
from http.server import ThreadingHTTPServer


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away or refuses us is what some tests want; anything else is a defect of the test."""
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]
