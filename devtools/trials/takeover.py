"""`./dev takeover`: kills the leader of two orchestrators again and again, and measures until all goes on.

Two real servers on a throwaway PostgreSQL, workers that register and hold their streams with the agent's own client and
patience, some of which run a job all the while, and a person who submits another one until it is accepted. It fails where
one of the goals is missed, or where a job that ran was disturbed.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from devtools.ports import free_port
from devtools.postgres import running_postgres
from simpletuner_fleet.agent.wire.addresses import Address
from simpletuner_fleet.agent.wire.backoff import MOST_S, NEXT_LEADER_S, Backoff
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.errors import Refused, Unreachable
from simpletuner_fleet.core.errors import NotLeader
from simpletuner_fleet.http.server.sockets import allow_many_connections
from simpletuner_fleet.protocol.messages import Accept, Heartbeat, HeldAttempt, JobSubmit, Register

PATIENCE_S = 120.0
SILENCE_S = 45.0
PING_S = 1.0
ASK_EVERY_S = 0.05
BEAT_S = 5.0
SUBMIT_GOAL_S, ALL_BACK_GOAL_S = 3.0, 8.0
"""What the 99th of a hundred runs may take."""
INCARNATION = "i1"
CONFIG = {"trainer": "command", "settings": {"command": ["true"]}}
SUBMITTED = {"target": "worker", "config": CONFIG}
"""Waits: no worker here has a GPU."""
RUNS_ON = {"target": "worker", "config": {**CONFIG, "resources": {"gpus": 0}}}


class OneServer:
    def __init__(self, home: Path, database_url: str, storage: Path) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {
            **os.environ,
            "SIMPLETUNER_HOME": str(home),
            "SIMPLETUNER_DATABASE_URL": database_url,
            "SIMPLETUNER_STORAGE_URL": f"file://{storage}",
            "SIMPLETUNER_MIN_FREE_GB": "0",
            # A stream that has lived for a while, as most have, has heard a ping; runs follow each other faster.
            "SIMPLETUNER_PING_INTERVAL": str(PING_S),
        }
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self._launch()
        await asyncio.to_thread(self._await_ready)

    def _launch(self) -> None:
        words = [sys.executable, "-m", "simpletuner_fleet.cli.main", "server", "--no-local"]
        with (self.home.parent / f"{self.home.name}.log").open("ab") as output:
            self._process = subprocess.Popen(
                [*words, "--port", str(self.port)], env=self._environment, stdout=output, stderr=output
            )

    def _await_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        with httpx2.Client(trust_env=False) as client:
            while time.monotonic() < deadline:
                try:
                    if client.get(f"{self.url}/health/ready").status_code == 200:
                        return
                except httpx2.TransportError:
                    pass
                time.sleep(ASK_EVERY_S)
        raise TimeoutError(f"{self.home.name} did not become ready")

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()


class StreamingWorker:
    """Registers and holds its stream, as the agent's loop does, and is there again whenever it was cut off."""

    def __init__(self, urls: list[str], name: str, token: str) -> None:
        async def no_tls() -> None:
            return None

        others = [Address(url, no_tls) for url in urls[1:]]
        self._client = OrchestratorClient(urls[0], lambda: token, None, others)
        self._client.answer_timeout_s = 5.0
        self._name = name
        self.back_at = 0.0
        """When its newest stream began; 0 while it has none."""
        self.held: HeldAttempt | None = None
        """What it says it runs, once it has accepted it."""

    async def live(self) -> None:
        backoff = Backoff()
        message = Register(
            name=self._name, persistent=True, trainers=["command"], attempts=[], incarnation=INCARNATION
        )
        while True:
            try:
                message.attempts = self._attempts()
                answer = await self._client.register(message)
                async with self._client.stream(answer.stream_url, "", lambda: SILENCE_S) as events:
                    self.back_at = time.monotonic()
                    async for event in events:
                        backoff.reset()
                        if event.name == "job_submit" and self.held is None:
                            await self._accept(msgspec.json.decode(event.data, type=JobSubmit))
                most_s = MOST_S
            except (Unreachable, Refused) as error:
                does_not_lead = isinstance(error, Refused) and error.code == NotLeader.code
                most_s = NEXT_LEADER_S if does_not_lead else MOST_S
            self.back_at = 0.0
            await asyncio.sleep(backoff.next_s(most_s))

    def _attempts(self) -> list[HeldAttempt]:
        return [self.held] if self.held else []

    async def _accept(self, offer: JobSubmit) -> None:
        accepted = Accept(epoch=offer.epoch, attempt=offer.attempt, incarnation=INCARNATION)
        await self._client.accept(offer.job_id, accepted)
        self.held = HeldAttempt(job_id=offer.job_id, epoch=offer.epoch, attempt=offer.attempt)

    async def beat(self) -> None:
        """Whoever runs something says so; of the others their stream is enough for as long as this lasts."""
        while True:
            await asyncio.sleep(BEAT_S)
            if self.held and self.back_at:
                message = Heartbeat(status="busy", attempts=self._attempts(), incarnation=INCARNATION)
                with suppress(Unreachable, Refused):
                    await self._client.heartbeat(message)


class Person:
    def __init__(self, servers: list[OneServer]) -> None:
        token = (servers[0].home / "admin_token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        self._client = httpx2.AsyncClient(headers=headers, trust_env=False, timeout=30.0)

    async def create_worker(self, url: str, name: str) -> str:
        answer = await self._client.post(f"{url}/api/admin/workers", json={"name": name})
        return str(answer.raise_for_status().json()["token"])

    async def submit(self, url: str, key: str, body: dict[str, Any] = SUBMITTED) -> None:
        """Again and again, until it is accepted."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    answer = await self._client.post(
                        f"{url}/api/queue/submit", json=body, headers={"idempotency-key": key}
                    )
                    if answer.is_success:
                        return
                except httpx2.TransportError:
                    pass
                await asyncio.sleep(ASK_EVERY_S)

    async def is_undisturbed(self, url: str, held: HeldAttempt) -> bool:
        """Whether the job still runs, in the very attempt that was begun."""
        job = (await self._client.get(f"{url}/api/jobs/{held.job_id}")).raise_for_status().json()
        tried = (await self._client.get(f"{url}/api/jobs/{held.job_id}/attempts")).raise_for_status().json()
        return job["status"] == "running" and [one["epoch"] for one in tried["attempts"]] == [held.epoch]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(ASK_EVERY_S)


async def one_run(
    leader: OneServer, other: OneServer, person: Person, workers: list[StreamingWorker], key: str
) -> tuple[float, float]:
    """Returns the seconds from the kill to the next accepted submit, and until every worker streams again."""
    leader.kill()
    killed_at = time.monotonic()
    await person.submit(other.url, key)
    submitted_s = time.monotonic() - killed_at
    await until(lambda: all(worker.back_at > killed_at for worker in workers))
    all_back_s = max((worker.back_at for worker in workers), default=killed_at) - killed_at
    await leader.start()
    await asyncio.sleep(2 * PING_S)
    return submitted_s, all_back_s


async def measure(
    folder: Path, database_url: str, runs: int, worker_count: int, running: int
) -> tuple[list[tuple[float, float]], list[str]]:
    """Returns what each run took, and which jobs were disturbed."""
    servers = [OneServer(folder / name, database_url, folder / "storage") for name in ("first", "second")]
    await servers[0].start()
    servers[1].home.mkdir(mode=0o700)
    shutil.copy(servers[0].home / "secrets.key", servers[1].home / "secrets.key")
    tasks = []
    try:
        await servers[1].start()
        person = Person(servers)
        urls = [server.url for server in servers]
        workers = []
        for number in range(worker_count):
            token = await person.create_worker(urls[0], f"w{number}")
            workers.append(StreamingWorker(urls, f"w{number}", token))
        tasks = [asyncio.create_task(worker.live()) for worker in workers]
        await until(lambda: all(worker.back_at for worker in workers))
        for number in range(running):
            await person.submit(urls[0], f"runs-on-{number}", RUNS_ON)
        await until(lambda: sum(worker.held is not None for worker in workers) == running)
        tasks += [asyncio.create_task(worker.beat()) for worker in workers if worker.held]
        results = []
        leader, other = servers
        for number in range(runs):
            results.append(await one_run(leader, other, person, workers, f"run-{number}"))
            print(
                f"run {number + 1}: submit {results[-1][0]:.2f} s, all back {results[-1][1]:.2f} s",
                flush=True,
            )
            leader, other = other, leader
        held = [worker.held for worker in workers if worker.held]
        return results, [one.job_id for one in held if not await person.is_undisturbed(leader.url, one)]
    finally:
        for task in tasks:
            task.cancel()
        for server in servers:
            server.kill()


def summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {
        "median_s": round(statistics.median(ordered), 2),
        "p99_s": round(p99, 2),
        "max_s": round(ordered[-1], 2),
    }


def missed(submits: list[float], back: list[float], disturbed: list[str]) -> list[str]:
    """Says which goals were missed."""
    said = [f"{job_id} ran before, and was disturbed" for job_id in disturbed]
    for what, seconds, goal_s in (
        ("the next accepted submit", submits, SUBMIT_GOAL_S),
        ("all workers back", back, ALL_BACK_GOAL_S),
    ):
        p99_s = summary(seconds)["p99_s"]
        if p99_s > goal_s:
            said.append(f"{what}: p99 {p99_s:.2f} s, and {goal_s:g} s are the goal")
    return said


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev takeover", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="how often the leader is killed (5)")
    parser.add_argument("--workers", type=int, default=50, help="how many workers hold a stream (50)")
    parser.add_argument("--running", type=int, help="how many of them run a job all the while (a tenth)")
    args = parser.parse_args(arguments)
    running = args.workers // 10 if args.running is None else args.running
    allow_many_connections()
    with tempfile.TemporaryDirectory(prefix="takeover-") as folder, running_postgres() as url:
        results, disturbed = asyncio.run(measure(Path(folder), url, args.runs, args.workers, running))
    submits, back = map(list, zip(*results, strict=True))
    figures = {"next accepted submit": summary(submits), "all workers back": summary(back)}
    counts = {
        "runs": args.runs,
        "workers": args.workers,
        "jobs that ran": running,
        "disturbed": len(disturbed),
    }
    print(json.dumps({**counts, **figures}))
    said = missed(submits, back, disturbed)
    print("\n".join(said) or "every goal was met")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
