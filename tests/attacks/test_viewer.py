"""A viewer who asks for more than anybody can answer: streams, followed logs, searches, pages, connections."""

import asyncio
import contextlib
import statistics
import threading
import time
from pathlib import Path

import httpx2
import pytest

from simpletuner_fleet.core.errors import TooManyRequests
from simpletuner_fleet.http.api.open_streams import FOLLOWERS, SEARCHES, STREAMS, Most, Open
from simpletuner_fleet.http.server import serving
from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.http.api.jobs.test_logs_api import taken
from tests.http.api_kit import UNUSED_TLS, orchestrator, until

MIB = 2**20


async def test_one_person_cannot_search_endlessly_often_at_once() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        await log.put(0, b"needle\n")
        path = f"{log.path}/search"
        running.deps.searching.by_caller["t_admin"] = SEARCHES.per_caller
        refused = await running.http.get(path, params={"q": "needle"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        running.deps.searching.by_caller.clear()
        assert (await running.http.get(path, params={"q": "needle"})).status_code == 200
        assert not running.deps.searching.by_caller, "it is given back"


@pytest.mark.parametrize("most", [STREAMS, FOLLOWERS, SEARCHES])
def test_an_address_with_many_accounts_is_one_address(most: Most) -> None:
    opened = Open(most)
    entered = 0
    for caller in range(most.per_address + 10):
        with contextlib.suppress(TooManyRequests):
            opened.enter(f"u_{caller}", "203.0.113.9")
            entered += 1
    assert entered == min(most.per_address, most.in_all)


async def test_one_address_never_has_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "most_connections", lambda: 20)
    async with orchestrator() as running:
        opened = [
            await asyncio.open_connection(running.listening.host, running.listening.port) for _ in range(30)
        ]
        await until(lambda: sum(not reader.at_eof() for reader, _ in opened) <= 15)
        for _, writer in opened:
            writer.close()


class Worker:
    """Sends heartbeats and measures how long each takes."""

    def __init__(self, url: str, worker_id: str, token: str) -> None:
        self.took: list[float] = []
        self._stop = threading.Event()
        self._client = httpx2.Client(
            base_url=url, headers={"X-Worker-Token": token}, trust_env=False, verify=UNUSED_TLS, timeout=30
        )
        self._body = {"worker_id": worker_id, "attempts": []}
        self._client.post(
            "/api/workers/register", json={"name": "w", "persistent": True, "trainers": [], "attempts": []}
        )
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stop.wait(0.02):
            began = time.monotonic()
            self._client.post("/api/workers/heartbeat", json=self._body).raise_for_status()
            self.took.append(time.monotonic() - began)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()


def memory_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / MIB


@pytest.mark.e2e
def test_a_flood_of_one_viewer_neither_delays_heartbeats_nor_keeps_memory(world: World) -> None:
    """A real server with a log of 24 MiB; one viewer follows and searches it as often as they are let, reading nothing."""
    noisy = "import sys\nfor _ in range(24): sys.stdout.write(('x' * 1023 + chr(10)) * 1024)"
    machine = world.start_worker("gpu-1")
    job_id = world.submit(world.command("python3", "-c", noisy, resources={"gpus": 0}))
    world.becomes(job_id, "completed", within_s=60)
    size = int(world.call("GET", f"/api/jobs/{job_id}/logs?tail=1").headers["x-log-size"])
    assert size >= 20 * MIB
    created = world.post("/api/admin/workers", {"name": "gpu-2"})
    viewer = world.post("/api/admin/tokens", {"name": "viewer", "permissions": ["jobs.read", "queue.read"]})
    pid = world.orchestrator.pid
    worker = Worker(world.url, created["worker_id"], created["token"])
    try:
        wait_until(lambda: len(worker.took) >= 20, "a few heartbeats in peace")
        before_mib, peaceful = memory_mib(pid), len(worker.took)
        most_mib, refused = asyncio.run(flood(world.url, viewer["token"], job_id, pid))
        during = worker.took[peaceful:]
    finally:
        worker.close()
    machine.running.signal(15)
    assert refused > 0, "there is a limit"
    assert len(during) >= 20
    assert statistics.quantiles(during, n=20)[-1] < 2.0, max(during)
    assert max(during) < 5.0
    assert most_mib - before_mib < 300
    wait_until(lambda: memory_mib(pid) - before_mib < 100, f"memory is given back: {memory_mib(pid)}", 60)


async def flood(url: str, token: str, job_id: str, pid: int) -> tuple[float, int]:
    """Returns the most memory that the server took, and how many calls it refused."""
    headers = {"Authorization": f"Bearer {token}"}
    limits = httpx2.Limits(max_connections=400)
    refused = 0
    async with httpx2.AsyncClient(
        base_url=url, headers=headers, trust_env=False, verify=UNUSED_TLS, timeout=60, limits=limits
    ) as client:

        async def follow() -> None:
            nonlocal refused
            async with client.stream(
                "GET", f"/api/jobs/{job_id}/logs", params={"follow": "1", "offset": 0}
            ) as answer:
                refused += answer.status_code == 429
                await asyncio.sleep(4)

        async def search() -> None:
            nonlocal refused
            for _ in range(4):
                answer = await client.get(f"/api/jobs/{job_id}/logs/search", params={"q": "needle"})
                refused += answer.status_code == 429

        flooding = [asyncio.create_task(one()) for one in [follow] * 100 + [search] * 50]
        most_mib = 0.0
        while not all(task.done() for task in flooding):
            most_mib = max(most_mib, memory_mib(pid))
            await asyncio.sleep(0.1)
        for task in flooding:
            task.exception()
    return most_mib, refused
