"""A checkpoint on its way up: the agent's own uploading against one `curl -T` of the same size to the same server.

The checkpoint is as Adam leaves one: weights, and a state of the optimizer twice as large. curl sends one file, and is given
its digest.
"""

import hashlib
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.machine import rss_bytes
from bench.options import Options
from bench.processes.uploading import TOKEN
from bench.programs import (
    POLL_S,
    UP_WITHIN_S,
    BenchmarkFailed,
    Server,
    environment,
    running_server,
    scratch,
    started,
    wait_until,
)
from bench.rows import Results
from bench.targets import UPLOAD_AGAINST_CURL

TARGETS = (UPLOAD_AGAINST_CURL,)
TITLE = "a checkpoint uploaded, verified and on the disk"
MIB = 1024 * 1024
CPU_JOB = {"config": {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}}


class UploadingAttempt:
    """A worker as far as an upload needs one, with a job."""

    def __init__(self, server: Server) -> None:
        created = server.post("/api/admin/workers", {"name": "bench-uploads"})
        address = urlsplit(server.url)
        self.url = server.url
        self.token = str(created["token"])
        self._wire = http.client.HTTPConnection(address.hostname or "", address.port)
        about = {"persistent": True, "gpus": [], "trainers": ["command"], "attempts": [], "seq": 1}
        self._call("/api/workers/register", {"name": "bench-uploads", **about})
        # Only a worker with an open stream is offered a job; the answers to its heartbeats carry the offer, too.
        self._stream = http.client.HTTPConnection(address.hostname or "", address.port)
        self._stream.request(
            "GET",
            f"/api/workers/stream?worker_id={created['worker_id']}",
            headers={"X-Worker-Token": self.token},
        )
        self.job_id = str(server.post("/api/queue/submit", CPU_JOB)["job_id"])
        self.epoch = int(self._offer()["epoch"])
        self._call(f"/api/workers/job/{self.job_id}/accept", {"epoch": self.epoch, "seq": 2})

    def close(self) -> None:
        self._stream.close()
        self._wire.close()

    def _offer(self) -> dict[str, Any]:
        deadline = time.monotonic() + UP_WITHIN_S
        while time.monotonic() < deadline:
            answer = self._call("/api/workers/heartbeat", {"attempts": []})
            if answer["jobs"]:
                offer: dict[str, Any] = answer["jobs"][0]
                return offer
            time.sleep(POLL_S)
        raise BenchmarkFailed("no offer came")

    def heartbeat(self) -> None:
        self._call("/api/workers/heartbeat", {"attempts": [{"job_id": self.job_id, "epoch": self.epoch}]})

    def _call(self, path: str, body: Any) -> Any:
        self._wire.close()  # the server has hung up on it if the last call was long ago
        headers = {"X-Worker-Token": self.token, "Content-Type": "application/json"}
        self._wire.request("POST", path, json.dumps(body).encode(), headers)
        answer = self._wire.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise BenchmarkFailed(f"{path}: {answer.status} {content[:300]!r}")
        return json.loads(content)

    def upload_by_agent(self, folder: Path, files: list[Path], step: int) -> float:
        """Returns the seconds that the agent's own uploading takes."""
        checkpoint = folder / "attempt" / "output" / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        for file in files:
            os.link(file, checkpoint / file.name)
        (checkpoint / ".guard").touch()
        argv = [sys.executable, "-m", "bench.processes.uploading", self.url, self.job_id, str(self.epoch)]
        done = subprocess.run(
            [*argv, str(folder / "attempt")],
            env=environment(folder, **{TOKEN: self.token}),
            stdout=subprocess.PIPE,
            check=True,
        )
        shutil.rmtree(checkpoint)
        return float(done.stdout)

    def upload_by_curl(self, folder: Path, file: Path, sha256: str) -> float:
        """Returns the seconds for one request with the whole file, verified and synced as the agent's parts are."""
        headers = folder / "headers"
        headers.touch(mode=0o600)
        headers.write_text(f"X-Worker-Token: {self.token}\nContent-Type: application/octet-stream\n")
        query = f"epoch={self.epoch}&offset=0&size={file.stat().st_size}"
        target = f"{self.url}/api/workers/job/{self.job_id}/objects/{sha256}?{query}"
        return _timed(lambda: _curl(file, target, "-H", f"@{headers}"))


def measure(options: Options, results: Results) -> None:
    size_mib = 256 if options.quick else 1024
    agent, curl, bare, growth = [], [], [], []
    with (
        scratch() as folder,
        running_server(folder) as server,
        _receiver(folder) as receiver,
        closing(UploadingAttempt(server)) as attempt,
    ):
        weights = _random_file(folder / "weights", size_mib // 3)
        optimizer = _random_file(folder / "optimizer", size_mib - size_mib // 3)
        whole = _random_file(folder / "whole", size_mib)
        for pair in range(options.repetitions):

            def by_agent(step: int = pair) -> None:
                _renew(weights), _renew(optimizer)
                before = rss_bytes(server.pid)
                agent.append(size_mib / attempt.upload_by_agent(folder, [weights, optimizer], step))
                growth.append((rss_bytes(server.pid) - before) / MIB)

            def by_curl() -> None:
                curl.append(size_mib / attempt.upload_by_curl(folder, whole, _renew(whole)))

            for act in (by_agent, by_curl) if pair % 2 else (by_curl, by_agent):
                act()
                attempt.heartbeat()
            bare.append(size_mib / _timed(lambda: _curl(whole, f"{receiver}/received")))
    note = f"{size_mib:,} MiB; the agent's digest and manifest included, curl is given its digest"
    results.compare(UPLOAD_AGAINST_CURL, "MiB/s", agent, curl, note)
    results.add("one curl -T to a bare receiver", "MiB/s", bare, "no digest")
    results.add(
        "share of the bare receiver", "of its rate", [statistics.median(agent) / statistics.median(bare)]
    )
    results.add("the server's memory, growth", "MiB", growth)
    results.add("SHA-256 on one core", "MiB/s", _digest_rates(), "the agent's digest and the server's")


def _random_file(path: Path, size_mib: int) -> Path:
    with path.open("wb") as file:
        for _ in range(size_mib):
            file.write(os.urandom(MIB))
    return path


def _renew(path: Path) -> str:
    """Makes the content new and syncs it, so that writing it back is not measured; returns its SHA-256."""
    with path.open("r+b") as file:
        file.write(os.urandom(64))
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_rates() -> list[float]:
    """Returns what bounds both sides where the processor has no instructions for it, and few cores are free."""
    data = os.urandom(64 * MIB)
    return [len(data) / MIB / _timed(lambda: hashlib.sha256(data).digest()) for _ in range(3)]


def _timed(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def _curl(path: Path, url: str, *more: str) -> None:
    subprocess.run(["curl", "-sf", "-o", os.devnull, *more, "-T", str(path), url], check=True)


@contextmanager
def _receiver(folder: Path) -> Iterator[str]:
    url_file = folder / "url"
    with started(
        [sys.executable, "-m", "bench.processes.receiver", str(folder)],
        environment(folder),
        folder / "receiver.log",
    ):
        wait_until(lambda: url_file.exists() and bool(url_file.read_text()), "the receiver starts")
        yield url_file.read_text()
