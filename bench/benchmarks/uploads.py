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
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.machine import rss_bytes
from bench.options import Options
from bench.processes.uploading import TOKEN
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
from bench.rows import Result

MIB = 1024 * 1024
LEAST_RATIO = 0.8
CPU_JOB = {"config": {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}}


class Attempt:
    """A worker as far as an upload needs one, with a job."""

    def __init__(self, server: Server) -> None:
        created = server.post("/api/admin/workers", {"name": "bench-uploads"})
        address = urlsplit(server.url)
        self.url = server.url
        self.token = str(created["token"])
        self._wire = http.client.HTTPConnection(address.hostname or "", address.port)
        about = {"persistent": True, "gpus": [], "trainers": ["command"], "attempts": [], "seq": 1}
        self._call("/api/workers/register", {"name": "bench-uploads", **about})
        # Only who listens is offered a job; what is said there is told by the heartbeat, too.
        self._stream = http.client.HTTPConnection(address.hostname or "", address.port)
        self._stream.request(
            "GET",
            f"/api/workers/stream?worker_id={created['worker_id']}",
            headers={"X-Worker-Token": self.token},
        )
        self.job_id = str(server.post("/api/queue/submit", CPU_JOB)["job_id"])
        self.epoch = int(self._offer()["epoch"])
        self._call(f"/api/workers/job/{self.job_id}/accept", {"epoch": self.epoch, "seq": 2})

    def _offer(self) -> dict[str, Any]:
        deadline = time.monotonic() + UP_WITHIN_S
        while time.monotonic() < deadline:
            told = self._call("/api/workers/heartbeat", {"attempts": []})
            if told["jobs"]:
                offer: dict[str, Any] = told["jobs"][0]
                return offer
            time.sleep(LOOK_AGAIN_S)
        raise NotInTime("no offer came")

    def heartbeat(self) -> None:
        self._call("/api/workers/heartbeat", {"attempts": [{"job_id": self.job_id, "epoch": self.epoch}]})

    def _call(self, path: str, body: Any) -> Any:
        self._wire.close()  # the server has hung up on it if the last call was long ago
        headers = {"X-Worker-Token": self.token, "Content-Type": "application/json"}
        self._wire.request("POST", path, json.dumps(body).encode(), headers)
        answer = self._wire.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise AssertionError(f"{path}: {answer.status} {said[:300]!r}")
        return json.loads(said)

    def uploaded_by_the_agent(self, folder: Path, files: list[Path], step: int) -> float:
        """Seconds, as the agent's own uploading takes them."""
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

    def uploaded_by_curl(self, folder: Path, file: Path, sha256: str) -> float:
        """Seconds for one request with the whole file: received, verified and synced as the agent's parts are."""
        headers = folder / "headers"
        headers.touch(mode=0o600)
        headers.write_text(f"X-Worker-Token: {self.token}\nContent-Type: application/octet-stream\n")
        query = f"epoch={self.epoch}&offset=0&size={file.stat().st_size}"
        target = f"{self.url}/api/workers/job/{self.job_id}/objects/{sha256}?{query}"
        return _timed(lambda: _curl(file, target, "-H", f"@{headers}"))


def measure(options: Options) -> Result:
    size_mib = 256 if options.quick else 1024
    result = Result(benchmark="uploads", title=f"a checkpoint of {size_mib} MiB, verified and on the disk")
    agent, curl, bare, grown = [], [], [], []
    with scratch() as folder, running_server(folder) as server, _receiver(folder) as receiver:
        attempt = Attempt(server)
        weights = _random_file(folder / "weights", size_mib // 3)
        optimizer = _random_file(folder / "optimizer", size_mib - size_mib // 3)
        whole = _random_file(folder / "whole", size_mib)
        for pair in range(options.repetitions):

            def by_agent(step: int = pair) -> None:
                _fresh(weights), _fresh(optimizer)
                before = rss_bytes(server.pid)
                agent.append(size_mib / attempt.uploaded_by_the_agent(folder, [weights, optimizer], step))
                grown.append((rss_bytes(server.pid) - before) / MIB)

            def by_curl() -> None:
                curl.append(size_mib / attempt.uploaded_by_curl(folder, whole, _fresh(whole)))

            for act in (by_agent, by_curl) if pair % 2 else (by_curl, by_agent):
                act()
                attempt.heartbeat()
            bare.append(size_mib / _timed(lambda: _curl(whole, f"{receiver}/received")))
    result.add("the agent's uploading, digest and manifest included", "MiB/s", agent)
    result.add("one curl -T to the same server", "MiB/s", curl)
    result.add("one curl -T to a bare receiver", "MiB/s", bare, "no digest")
    ratios = [ours / peer for ours, peer in zip(agent, curl, strict=True)]
    result.add("share of curl, pair by pair", "of its rate", ratios)
    result.add(
        "share of the bare receiver", "of its rate", [statistics.median(agent) / statistics.median(bare)]
    )
    result.add("the server's memory, growth", "MiB", grown)
    result.at_least("share of curl", statistics.median(ratios), LEAST_RATIO, "of its rate")
    return result


def _random_file(path: Path, size_mib: int) -> Path:
    with path.open("wb") as file:
        for _ in range(size_mib):
            file.write(os.urandom(MIB))
    return path


def _fresh(path: Path) -> str:
    """Content that nobody has seen, on the disk, so that writing it back is no part of what is measured; its SHA-256."""
    with path.open("r+b") as file:
        file.write(os.urandom(64))
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _timed(act: Callable[[], None]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def _curl(path: Path, url: str, *more: str) -> None:
    subprocess.run(["curl", "-sf", "-o", os.devnull, *more, "-T", str(path), url], check=True)


@contextmanager
def _receiver(folder: Path) -> Iterator[str]:
    told = folder / "url"
    with started(
        [sys.executable, "-m", "bench.processes.receiver", str(folder)],
        environment(folder),
        folder / "receiver.log",
    ):
        deadline = time.monotonic() + UP_WITHIN_S
        while not told.exists() or not told.read_text():
            if time.monotonic() > deadline:
                raise NotInTime("the receiver did not come up")
            time.sleep(LOOK_AGAIN_S)
        yield told.read_text()
