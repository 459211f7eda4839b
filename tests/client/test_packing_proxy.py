"""Behind a proxy that packs whatever it passes on: the bytes are the true ones, and events come as they happen."""

import gzip
import hashlib
import threading
import time
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.cli.remote.changes import changes
from simpletuner_fleet.client import ClientError, Fleet, connection
from simpletuner_fleet.client.files.downloads import Downloader, RemoteFile
from tests.quiet_server import QuietServer

WEIGHTS = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
FILE = RemoteFile(url="/file", place="model", size=len(WEIGHTS), sha256=SHA256)
HALF = len(WEIGHTS) // 2


class Handling(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "PackingProxy"

    def do_GET(self) -> None:
        if self.path.startswith("/file"):
            self.server.asked.append(self.headers.get("Range", ""))
            self._file(self.headers.get("Range", ""))
        elif self.path == "/api/events":
            self._slowly("text/event-stream", [b"event: job\ndata: {}\n\n"] * 3)
        elif "lines=" in self.path:
            self._packed(200, "application/json", b'{"attempt": 1, "ended": true, "size": 8}')
        else:
            self._slowly("text/plain", [b"one\n", b"two\n"])

    def _file(self, wanted: str) -> None:
        start = int(wanted.removeprefix("bytes=").rstrip("-") or 0)
        if self.server.kind == "ranges of what is packed" and start:
            body = gzip.compress(WEIGHTS)[start:]
            self._send(206, "application/octet-stream", body, f"bytes {start}-")
        elif self.server.kind == "packed ranges" and start:
            self._packed(206, "application/octet-stream", WEIGHTS[start:], f"bytes {start}-")
        elif self.server.kind == "cut" and len(self.server.asked) == 1:
            body = gzip.compress(WEIGHTS)
            self._send(200, "application/octet-stream", body[: len(body) // 2])
        elif self.server.kind == "spoiled":
            self._send(200, "application/octet-stream", b"\x1f\x8b not gzip at all")
        else:
            self._packed(200, "application/octet-stream", WEIGHTS)

    def _packed(self, status: int, content_type: str, body: bytes, part: str = "") -> None:
        self._send(status, content_type, gzip.compress(body), part)

    def _send(self, status: int, content_type: str, body: bytes, part: str = "") -> None:
        self._head(status, content_type)
        if part:
            self.send_header("Content-Range", part)
        if self.server.kind == "without a length":
            self.close_connection = True
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _head(self, status: int, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("ETag", f'"{SHA256}-gzip"')
        self.send_header("X-Log-Attempt", "1")

    def _slowly(self, content_type: str, pieces: list[bytes]) -> None:
        self._head(200, content_type)
        self.send_header("Connection", "close")
        self.end_headers()
        packer = zlib.compressobj(wbits=31)
        for piece in pieces:
            while not self.server.happen.acquire(timeout=0.05):
                if self.server.over.is_set():
                    return
            self.wfile.write(packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH))
        self.wfile.write(packer.flush())

    def log_message(self, format: str, *args: object) -> None:
        pass


class PackingProxy(QuietServer):
    """Packs all answers, also of those who ask for none to be packed; `kind` says how it does so."""

    def __init__(self, kind: str) -> None:
        super().__init__(("127.0.0.1", 0), Handling)
        self.kind = kind
        self.asked: list[str] = []
        self.over, self.happen = threading.Event(), threading.Semaphore(0)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._serving = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._serving.start()

    def stop(self) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()
        self._serving.join()


@pytest.fixture
def proxy(request: pytest.FixtureRequest) -> Iterator[PackingProxy]:
    made = PackingProxy(getattr(request, "param", "plain"))
    yield made
    made.stop()


RIGHT = ["plain", "without a length", "packed ranges", "ranges of what is packed", "cut"]


@pytest.mark.parametrize("proxy", RIGHT, indirect=True)
@pytest.mark.parametrize("had", [0, HALF], ids=["begun anew", "gone on with"])
def test_a_file_that_was_packed_on_its_way_is_the_true_one(
    proxy: PackingProxy, tmp_path: Path, had: int
) -> None:
    (tmp_path / "model.part").write_bytes(WEIGHTS[:had])
    with Fleet(proxy.url, "st_x") as fleet:
        Downloader(fleet._files, sleep=lambda _: None).to_folder(tmp_path, [FILE])
    assert (tmp_path / "model").read_bytes() == WEIGHTS
    assert len(proxy.asked) <= 3


@pytest.mark.parametrize("proxy", ["spoiled"], indirect=True)
def test_what_cannot_be_unpacked_is_an_honest_error(proxy: PackingProxy, tmp_path: Path) -> None:
    (tmp_path / "model.part").write_bytes(WEIGHTS[:HALF])
    where = connection.given(url=proxy.url, api_token="st_x")
    with Fleet(proxy.url, "st_x") as fleet, Api(where) as api:
        for files in (fleet._files, api):
            with pytest.raises(ClientError) as refused:
                Downloader(files, sleep=lambda _: None).to_folder(tmp_path, [FILE])
            assert refused.value.trouble.exit == 6
            assert "unpacked" in str(refused.value)
    assert (tmp_path / "model.part").read_bytes() == WEIGHTS[:HALF]


def test_events_come_as_they_happen(proxy: PackingProxy) -> None:
    with Api(connection.given(url=proxy.url, api_token="st_x")) as api:
        seen = changes(api)
        next(seen)  # the stream stands
        for _event in range(2):
            began_at = time.monotonic()
            proxy.happen.release()
            next(seen)
            assert time.monotonic() - began_at < 5.0
        del seen  # closes the stream


def test_lines_of_a_log_come_as_they_are_written(proxy: PackingProxy) -> None:
    with Fleet(proxy.url, "st_x") as fleet:
        lines = fleet.logs("j_1", follow=True)
        for line in ("one", "two"):
            proxy.happen.release()
            assert next(lines) == line
        assert list(lines) == []
