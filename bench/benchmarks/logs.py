"""A trainer that prints a lot under the worker, every byte of it sent on.

By turns it prints as much into a file that nobody reads; how much slower the turns are whose bytes are sent is the cost.
Worker, orchestrator and trainer share the machine. The same without any worker is the control: it should cost nothing.
"""

import hashlib
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from threading import Event, Thread
from typing import Any

from msgspec import Struct

from bench.machine import cpu_s, rss_bytes
from bench.options import Options
from bench.processes import log_trainer
from bench.processes.log_trainer import TURN_MIB
from bench.programs import NotInTime, Server, running_agents, running_server, scratch
from bench.rows import Result

MIB = 1024 * 1024
TRAINER = Path(log_trainer.__file__)
MOST_SLOWDOWN_PERCENT = 2.0
MOST_GROWTH_MIB = 32.0
PAGE_MS = 1000.0
WITHIN_S = 600.0
SAMPLE_EVERY_S = 0.25
WARM_MIB = 32
"""Printed once before: what any first job makes grow is not counted."""


class Trained(Struct):
    """As the trainer tells it: seconds of each turn."""

    output: list[float]
    own_file: list[float]
    sha256: str
    ended_at: float

    @property
    def slowdown_percent(self) -> float:
        """The median over turns that lie beside each other."""
        pairs = zip(self.output, self.own_file, strict=True)
        return (statistics.median([sent / own for sent, own in pairs]) - 1) * 100


class Memory:
    """The highest resident size of some processes while something runs."""

    def __init__(self, **pids: int) -> None:
        self._pids = pids
        self.before = {name: rss_bytes(pid) for name, pid in pids.items()}
        self.most = dict(self.before)
        self._over = Event()
        self._thread = Thread(target=self._watch)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_EVERY_S):
            for name, pid in self._pids.items():
                self.most[name] = max(self.most[name], rss_bytes(pid))

    def growth_mib(self, name: str) -> float:
        return (self.most[name] - self.before[name]) / MIB


def measure(options: Options) -> Result:
    size_mib = 256 if options.quick else 1024
    result = Result(benchmark="logs", title=f"a trainer that computes and prints {size_mib} MiB")
    with scratch() as folder, running_server(folder) as server, running_agents(server, folder) as (agent,):
        _under_the_worker(server, folder / "warm", WARM_MIB)
        control = _without_worker(folder, size_mib // 4)
        before = cpu_s(agent) + cpu_s(server.pid)
        with Memory(agent=agent, server=server.pid) as memory:
            job_id, trained, late_s = _under_the_worker(server, folder / "told", size_mib)
        used = (cpu_s(agent) + cpu_s(server.pid) - before) * 1000 / size_mib
        if _digest(server, job_id) != trained.sha256:
            raise AssertionError("what arrived is not what was printed")
        opened = [_timed_ms(lambda: _page(server, job_id)) for _ in range(5)]
        searched = _timed_ms(lambda: _search(server, job_id)) / size_mib
    turns = f"{TURN_MIB} MiB each, {len(trained.output)} of each kind"
    result.add("turns that are sent", "s", trained.output, turns)
    result.add("turns into a file of its own", "s", trained.own_file)
    slowdown = result.add("slowdown", "%", [trained.slowdown_percent], "median of neighbouring turns")
    cost_ms = (statistics.mean(trained.output) - statistics.mean(trained.own_file)) * 1000 / TURN_MIB
    result.add("what it costs the trainer", "ms/MiB", [cost_ms])
    result.add("control: the same without a worker", "%", [control.slowdown_percent])
    result.add("agent and server, CPU", "ms/MiB", [used])
    result.add("end of the trainer to end of the job", "s", [late_s])
    grown = result.add("agent, memory growth", "MiB", [memory.growth_mib("agent")])
    result.add("server, memory growth", "MiB", [memory.growth_mib("server")])
    page = result.add("last 1,000 lines as a page", "ms", opened)
    result.add("search of the whole log for a text", "ms/MiB", [searched])
    result.below("slowdown", slowdown, MOST_SLOWDOWN_PERCENT, "%")
    result.below("agent, memory growth", grown, MOST_GROWTH_MIB, "MiB")
    result.below("last 1,000 lines as a page", page, PAGE_MS, "ms")
    result.note("every byte arrived: SHA-256 of what was printed and of what is stored are equal")
    return result


def _without_worker(folder: Path, size_mib: int) -> Trained:
    told, output = folder / "control", folder / "control.log"
    with output.open("wb") as file:
        subprocess.run(_words(size_mib, told), stdout=file, stderr=file, check=True)
    output.unlink()
    return _told(told)


def _under_the_worker(server: Server, told: Path, size_mib: int) -> tuple[str, Trained, float]:
    settings = {"command": _words(size_mib, told)}
    bundle = {"trainer": "command", "settings": settings, "resources": {"gpus": 0}}
    job_id = str(server.post("/api/queue/submit", {"config": bundle})["job_id"])
    deadline = time.monotonic() + WITHIN_S
    while (job := server.get(f"/api/jobs/{job_id}"))["status"] != "completed":
        if time.monotonic() > deadline or job["status"] in ("failed", "cancelled"):
            raise NotInTime(f"the job did not complete: {job}")
        time.sleep(0.2)
    trained = _told(told)
    return job_id, trained, time.time() - trained.ended_at


def _words(size_mib: int, told: Path) -> list[str]:
    return [sys.executable, "-I", "-S", str(TRAINER), str(size_mib), str(told), f"{told}.own"]


def _told(path: Path) -> Trained:
    path.with_name(f"{path.name}.own").unlink()
    return Trained(**json.loads(path.read_text()))


def _digest(server: Server, job_id: str) -> str:
    digest = hashlib.sha256()
    with _open(server, f"/api/jobs/{job_id}/logs", "*/*") as answer:
        while data := answer.read(MIB):
            digest.update(data)
    return digest.hexdigest()


def _page(server: Server, job_id: str) -> None:
    with _open(server, f"/api/jobs/{job_id}/logs?tail=1000", "application/json") as answer:
        assert len(json.loads(answer.read())["lines"]) == 1000


def _search(server: Server, job_id: str) -> None:
    at, done = 0, False
    while not done:
        found = server.get(f"/api/jobs/{job_id}/logs/search?q=nowhere-to-be-found&from={at}")
        at, done = int(found["next"]), bool(found["done"])


def _open(server: Server, path: str, accept: str) -> Any:
    headers = {"authorization": f"Bearer {server.admin_token}", "accept": accept}
    return urllib.request.urlopen(urllib.request.Request(server.url + path, headers=headers), timeout=60)


def _timed_ms(act: Any) -> float:
    began = time.monotonic()
    act()
    return (time.monotonic() - began) * 1000
