"""A checkpoint on its way up: in parts, verified and synced, against one `curl -T` to the same HTTP server."""

import hashlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.machine import rss_bytes
from bench.options import Options
from bench.programs import (
    LOOK_AGAIN_S,
    UP_WITHIN_S,
    NotInTime,
    Server,
    environment,
    running_server,
    scratch,
    started,
)
from bench.results import Result
from simpletuner_fleet.protocol.uploads import PART_BYTES

MIB = 1024 * 1024
LEAST_RATIO = 0.8
CPU_JOB = {"config": {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}}


class Attempt:
    """A worker as far as an upload needs one."""

    def __init__(self, server: Server) -> None:
        created = server.post("/api/admin/workers", {"name": "bench-uploads"})
        address = urlsplit(server.url)
        self._token = str(created["token"])
        self._wire = http.client.HTTPConnection(address.hostname or "", address.port)
        about = {"persistent": True, "gpus": [], "trainers": ["command"], "attempts": [], "seq": 1}
        self._call("POST", "/api/workers/register", {"name": "bench-uploads", **about})
        # Only who listens is offered a job; what is said there is told by the heartbeat, too.
        self._stream = http.client.HTTPConnection(address.hostname or "", address.port)
        self._stream.request(
            "GET",
            f"/api/workers/stream?worker_id={created['worker_id']}",
            headers={"X-Worker-Token": self._token},
        )
        job_id = server.post("/api/queue/submit", CPU_JOB)["job_id"]
        offer = self._offer()
        self.epoch = offer["epoch"]
        self.base = f"/api/workers/job/{job_id}"
        self._call("POST", f"{self.base}/accept", {"epoch": self.epoch, "seq": 2})

    def _offer(self) -> dict[str, Any]:
        deadline = time.monotonic() + UP_WITHIN_S
        while time.monotonic() < deadline:
            told = self._call("POST", "/api/workers/heartbeat", {"attempts": []})
            if told["jobs"]:
                offer: dict[str, Any] = told["jobs"][0]
                return offer
            time.sleep(LOOK_AGAIN_S)
        raise NotInTime("no offer came")

    def _call(self, method: str, path: str, body: Any) -> Any:
        return self._send(method, path, json.dumps(body).encode(), "application/json")

    def _send(self, method: str, path: str, body: bytes, kind: str) -> Any:
        self._wire.request(method, path, body, {"X-Worker-Token": self._token, "Content-Type": kind})
        answer = self._wire.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise AssertionError(f"{method} {path}: {answer.status} {said[:300]!r}")
        return json.loads(said)

    def upload(self, path: Path, sha256: str) -> None:
        size = path.stat().st_size
        at = 0
        with path.open("rb") as file:
            while at < size:
                part = file.read(PART_BYTES)
                query = f"epoch={self.epoch}&offset={at}&size={size}"
                target = f"{self.base}/objects/{sha256}?{query}"
                at = self._send("PUT", target, part, "application/octet-stream")["next_offset"]


def measure(options: Options) -> Result:
    size_mib = 256 if options.quick else 1024
    result = Result(benchmark="uploads", title=f"a checkpoint of {size_mib} MiB, verified and on the disk")
    ours, plain, grown = [], [], []
    with scratch() as folder, running_server(folder) as server, _receiver(folder) as url:
        attempt = Attempt(server)
        for _ in range(options.repetitions):
            path, sha256 = _random_file(folder / "checkpoint", size_mib)
            plain.append(size_mib / _timed(lambda path=path: _curl(path, url)))
            before = rss_bytes(server.pid)
            ours.append(size_mib / _timed(lambda path=path, sha256=sha256: attempt.upload(path, sha256)))
            grown.append((rss_bytes(server.pid) - before) / MIB)
    rate = result.add("in parts to the orchestrator", "MiB/s", ours)
    peer = result.add("one curl -T to a bare receiver", "MiB/s", plain, "no digest")
    result.add("the server's memory, growth", "MiB", grown)
    result.at_least("share of curl", rate / peer, LEAST_RATIO, "of its rate")
    return result


def _random_file(path: Path, size_mib: int) -> tuple[Path, str]:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(size_mib):
            block = os.urandom(MIB)
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return path, digest.hexdigest()


def _timed(act: Any) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def _curl(path: Path, url: str) -> None:
    subprocess.run(["curl", "-sf", "-o", os.devnull, "-T", str(path), f"{url}/received"], check=True)


@contextmanager
def _receiver(folder: Path) -> Iterator[str]:
    told = folder / "url"
    with started(
        [sys.executable, "-m", "bench.receiver", str(folder)], environment(folder), folder / "receiver.log"
    ):
        deadline = time.monotonic() + UP_WITHIN_S
        while not told.exists() or not told.read_text():
            if time.monotonic() > deadline:
                raise NotInTime("the receiver did not come up")
            time.sleep(LOOK_AGAIN_S)
        yield told.read_text()
