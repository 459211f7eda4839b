"""A gate before the S3 of the tests that is as strict as S3 itself: moto takes any signature, checksum and age of a link.

Signatures are checked with AWS' own library, not with ours. Headers that S3 wants signed must be, a link that has run out is
refused, and so is a part that is not what its checksum says. All else is moto's.
"""

import base64
import hashlib
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]

from tests.quiet_server import QuietServer
from tests.s3_server import KEY, REGION, SECRET

HOP = frozenset({"connection", "transfer-encoding", "content-length", "date", "server"})


class Seen:
    """One request."""

    def __init__(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> None:
        self.method, self.target, self.body, self.headers = method, target, body, headers
        query = parse_qs(urlsplit(target).query, keep_blank_values=True)
        self.query = {name: values[-1] for name, values in query.items()}

    @property
    def by_link(self) -> bool:
        return "X-Amz-Signature" in self.query

    @property
    def is_part(self) -> bool:
        return self.method == "PUT" and "partNumber" in self.query


class Gate:
    def __init__(self) -> None:
        self.endpoint = ""
        self.reset()

    def reset(self) -> None:
        self.refused: list[str] = []
        self.taken: list[Seen] = []
        self.before: Callable[[Seen], int | None] = lambda seen: None
        """What a test does before a request is looked at; a status it returns is the whole answer."""
        self.after: Callable[[Seen], None] = lambda seen: None
        """What a test does once a request was answered."""
        self.now: Callable[[], float] = time.time

    @property
    def parts_by_link(self) -> list[Seen]:
        return [seen for seen in self.taken if seen.by_link and seen.is_part]

    def fault_of(self, seen: Seen) -> str:
        query, headers = seen.query, seen.headers
        if seen.by_link:
            stamp, named = query["X-Amz-Date"], query["X-Amz-SignedHeaders"].split(";")
            at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
            if self.now() > at + int(query["X-Amz-Expires"]):
                return "AccessDenied"
            auth: Any = S3SigV4QueryAuth(
                Credentials(KEY, SECRET), "s3", REGION, expires=int(query["X-Amz-Expires"])
            )
            claimed = query["X-Amz-Signature"]
        elif "authorization" in headers:
            words = dict(
                part.strip().split("=", 1) for part in headers["authorization"].partition(" ")[2].split(",")
            )
            stamp, named, claimed = (
                headers["x-amz-date"],
                words["SignedHeaders"].split(";"),
                words["Signature"],
            )
            auth = S3SigV4Auth(Credentials(KEY, SECRET), "s3", REGION)
        else:
            return "AccessDenied"
        if any(name.startswith("x-amz-") and name not in named for name in headers):
            return "AccessDenied"
        if self._signature(auth, seen, named, stamp) != claimed:
            return "SignatureDoesNotMatch"
        checksum = headers.get("x-amz-checksum-sha256")
        if checksum and checksum != base64.b64encode(hashlib.sha256(seen.body).digest()).decode():
            return "BadDigest"
        return ""

    def _signature(self, auth: Any, seen: Seen, named: list[str], stamp: str) -> str:
        path, _, query = seen.target.partition("?")
        unsigned = "&".join(pair for pair in query.split("&") if not pair.startswith("X-Amz-Signature="))
        request: Any = AWSRequest(
            seen.method,
            f"{self.endpoint}{path}" + (f"?{unsigned}" if unsigned else ""),
            headers={name: seen.headers.get(name, "") for name in named},
            data=b"" if seen.by_link else seen.body,
        )
        request.context["timestamp"] = stamp
        if seen.by_link:
            request.headers["X-Amz-Content-SHA256"] = "UNSIGNED-PAYLOAD"
            canonical = auth.canonical_request(request)
            canonical = canonical.replace("x-amz-content-sha256:UNSIGNED-PAYLOAD\n", "").replace(
                ";x-amz-content-sha256", ""
            )
        else:
            canonical = auth.canonical_request(request)
        return str(auth.signature(auth.string_to_sign(request, canonical), request))


@contextmanager
def gate_before(upstream: str) -> Iterator[Gate]:
    gate = Gate()
    host, port = urlsplit(upstream).hostname or "", urlsplit(upstream).port

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = Seen(self.command, self.path, body, headers)
            status = gate.before(seen)
            fault = "" if status else gate.fault_of(seen)
            if status or fault:
                gate.refused.append(fault or str(status))
                self._say(status or (400 if fault == "BadDigest" else 403), fault or "SlowDown")
                return
            gate.taken.append(seen)
            connection = http.client.HTTPConnection(host, port, timeout=60)
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP:
                    self.send_header(name, value)
            length = answer.getheader("content-length") if self.command == "HEAD" else str(len(content))
            self.send_header("content-length", length or "0")
            self.end_headers()
            self.wfile.write(content)
            connection.close()
            gate.after(seen)

        def _say(self, status: int, code: str) -> None:
            content = f"<Error><Code>{code}</Code></Error>".encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

        def log_message(self, *words: object) -> None:
            pass

    with QuietServer(("127.0.0.1", 0), Handler) as server:
        gate.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield gate
        finally:
            server.shutdown()
