"""The metadata services of three clouds in one real server, which answers each only as that cloud does."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.quiet_server import QuietServer

TOKEN = "AQAAAtoken=="
OWN_NAME = "gpu-vm-1"


class CloudFacts:
    """What the clouds say; a test changes it."""

    def __init__(self) -> None:
        self.url = ""
        self.changed = threading.Condition()
        self.begin_anew()

    def begin_anew(self) -> None:
        self.instance_action: str | None = None
        self.tokens = [TOKEN]
        self.preempted = False
        self.flavor = "Google"
        self.events: list[dict[str, Any]] = []
        self.asked: list[str] = []

    def preempt(self) -> None:
        with self.changed:
            self.preempted = True
            self.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    facts: CloudFacts

    def do_PUT(self) -> None:
        self.facts.asked.append(f"PUT {self.path}")
        if self.path == "/latest/api/token" and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
            self._answer(200, self.facts.tokens[-1])
        else:
            self._answer(400)

    def do_GET(self) -> None:
        self.facts.asked.append(self.path)
        parts = urlsplit(self.path)
        match parts.path:
            case "/latest/meta-data/spot/instance-action":
                self._aws()
            case "/computeMetadata/v1/instance/preempted":
                self._gcp(parse_qs(parts.query))
            case "/metadata/instance/compute/name" if self.headers.get("Metadata") == "true":
                self._answer(200, OWN_NAME)
            case "/metadata/scheduledevents" if self.headers.get("Metadata") == "true":
                self._answer(200, json.dumps({"DocumentIncarnation": 1, "Events": self.facts.events}))
            case _:
                self._answer(404)

    def _aws(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") != self.facts.tokens[-1]:
            self._answer(401)
        elif self.facts.instance_action is None:
            self._answer(404, "<html>")
        else:
            self._answer(200, self.facts.instance_action)

    def _gcp(self, query: dict[str, list[str]]) -> None:
        if self.headers.get("Metadata-Flavor") != "Google":
            self._answer(403)
            return
        if "wait_for_change" in query:
            with self.facts.changed:
                known = query["last_etag"] == [str(self.facts.preempted)]
                self.facts.changed.wait_for(lambda: self.facts.preempted or not known, 10.0)
        text = "TRUE" if self.facts.preempted else "FALSE"
        headers = {"Metadata-Flavor": self.facts.flavor, "ETag": str(self.facts.preempted)}
        self._answer(200, text, headers)

    def _answer(self, status: int, text: str = "", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def metadata_server() -> Iterator[CloudFacts]:
    facts = CloudFacts()
    server = QuietServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"facts": facts}))
    server.daemon_threads = True
    facts.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield facts
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
