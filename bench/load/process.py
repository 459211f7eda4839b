"""Many protocol workers, and submitters beside them, in one process: orders on its input, answers on its output."""

import asyncio
import os
import ssl
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import uvloop

from bench.load.orders import Attend, Connect, LoadAnswer, LoadOrder, RunJobs, SendHeartbeats, Setup
from bench.load.protocol_worker import OfferedJob, ProtocolWorker
from bench.load.wire import Connection, EventReader, post
from bench.machine import cpu_s

P = TypeVar("P", Connection, EventReader)
CONNECTING_AT_ONCE = 64
ORDER_TIMEOUT_S = 540.0
KEEP_ALIVE_S = 25.0
"""Workers send heartbeats between two orders, too: the orchestrator would give silent ones up."""


class SubmitAnswer(msgspec.Struct):
    job_id: str


_submit_answer = msgspec.json.Decoder(SubmitAnswer)


class LoadProcess:
    def __init__(self, setup: Setup) -> None:
        address = urlsplit(setup.url)
        self.host = address.netloc
        self.tls = address.scheme == "https"
        self._address = (str(address.hostname), int(address.port or 80))
        self._context = ssl.create_default_context(cafile=setup.ca_file) if self.tls else None
        self._workers = [ProtocolWorker(self, account) for account in setup.accounts]
        self._submit_request = _submit_request(self.host, setup)
        self._tasks: set[asyncio.Task[None]] = set()
        self._completed = 0
        self._to_complete = 0
        self._all_completed = asyncio.Event()
        self._completions = asyncio.Semaphore(0)
        """One for each job that may be completed: with a long queue, offers never end by themselves."""
        self._completes_everything = False
        self._failures: list[str] = []
        self.submitted_at: dict[str, float] = {}
        self.offered_at: dict[str, float] = {}

    async def carry_out(self, order: LoadOrder) -> LoadAnswer:
        began, cpu_began = time.monotonic(), cpu_s(os.getpid())
        completed_before = self._completed
        self._failures.clear()
        self.submitted_at, self.offered_at = {}, {}
        heartbeats = 0
        match order:
            case Connect():
                await self._connect()
            case RunJobs(jobs, submitters):
                await self._run_jobs(jobs, submitters)
            case Attend(seconds, heartbeat_interval_s, submits_per_s):
                heartbeats = await self._attend(seconds, heartbeat_interval_s, submits_per_s)
            case SendHeartbeats(seconds):
                end = time.monotonic() + seconds
                counts = [worker.send_heartbeats_until(end) for worker in self._workers]
                heartbeats = sum(await asyncio.gather(*counts))
        return LoadAnswer(
            seconds=time.monotonic() - began,
            cpu_s=cpu_s(os.getpid()) - cpu_began,
            completed=self._completed - completed_before,
            heartbeats=heartbeats,
            lost_streams=sum(worker.stream is not None and worker.stream.lost for worker in self._workers),
            failures=len(self._failures),
            last_failure=self._failures[-1] if self._failures else "",
            submitted_at=self.submitted_at,
            offered_at=self.offered_at,
        )

    async def keep_alive(self) -> None:
        for worker in self._workers:
            await worker.send_heartbeat()

    # What the workers need.

    async def dial(self, protocol: Callable[[], P]) -> P:
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(protocol, *self._address, ssl=self._context)
        return made

    def job_offered(self, worker: ProtocolWorker, offer: OfferedJob) -> None:
        self._spawn(worker.run_job(offer))

    async def may_complete(self) -> None:
        if not self._completes_everything:
            await self._completions.acquire()

    def job_completed(self) -> None:
        self._completed += 1
        if self._completed == self._to_complete:
            self._all_completed.set()

    # The orders.

    async def _connect(self) -> None:
        gate = asyncio.Semaphore(CONNECTING_AT_ONCE)

        async def connect(worker: ProtocolWorker) -> None:
            async with gate:
                await worker.connect()

        await asyncio.gather(*(connect(worker) for worker in self._workers))

    async def _run_jobs(self, jobs: int, submitters: int) -> None:
        self._all_completed.clear()
        self._to_complete = self._completed + jobs
        for _ in range(jobs):
            self._completions.release()
        remaining = iter(range(jobs))

        async def submit() -> None:
            connection = await self.dial(Connection)
            for _ in remaining:
                await connection.send(self._submit_request)
            connection.close()

        await asyncio.gather(*(submit() for _ in range(submitters)), self._all_completed.wait())

    async def _attend(self, seconds: float, heartbeat_interval_s: float, submits_per_s: float) -> int:
        """The jobs of one process may be offered to workers of another, which completes whatever it is offered."""
        self._completes_everything = True
        end = time.monotonic() + seconds
        heartbeats = 0

        async def send_heartbeats(worker: ProtocolWorker, offset_s: float) -> None:
            nonlocal heartbeats
            await asyncio.sleep(offset_s)
            while time.monotonic() < end:
                await worker.send_heartbeat()
                heartbeats += 1
                await asyncio.sleep(heartbeat_interval_s)

        beating = [
            asyncio.create_task(send_heartbeats(worker, heartbeat_interval_s * number / len(self._workers)))
            for number, worker in enumerate(self._workers)
        ]
        if submits_per_s:
            await self._submit_steadily(end, 1 / submits_per_s)
        await asyncio.sleep(max(0.0, end - time.monotonic()))
        self._note_failures_of([task for task in beating if task.done()])
        for task in beating:
            task.cancel()
        await asyncio.gather(*beating, return_exceptions=True)
        return heartbeats

    async def _submit_steadily(self, end: float, every_s: float) -> None:
        connection = await self.dial(Connection)
        while time.monotonic() < end - 1:
            sent = time.monotonic()
            answer = _submit_answer.decode(await connection.send(self._submit_request))
            self.submitted_at[answer.job_id] = sent
            await asyncio.sleep(max(0.0, every_s - (time.monotonic() - sent)))
        connection.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._note_failures_of([task])

    def _note_failures_of(self, tasks: list[asyncio.Task[None]]) -> None:
        """A job that failed will never complete, so nobody waits for the others either."""
        for task in tasks:
            if not task.cancelled() and (error := task.exception()):
                self._failures.append(f"{type(error).__name__}: {error}")
                self._all_completed.set()


def _submit_request(host: str, setup: Setup) -> bytes:
    headers = (
        f"Host: {host}\r\nAuthorization: Bearer {setup.admin_token}\r\nContent-Type: application/json\r\n"
    )
    return post("/api/queue/submit", headers, setup.submit_body.encode())


async def next_line(load: LoadProcess | None) -> str:
    """Waits for a line on the standard input; meanwhile the workers send heartbeats now and then."""
    line = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    while True:
        done, _ = await asyncio.wait({line}, timeout=KEEP_ALIVE_S)
        if done:
            return str(line.result())
        if load:
            await load.keep_alive()


async def main() -> None:
    load = LoadProcess(msgspec.json.decode(await next_line(None), type=Setup))
    while line := await next_line(load):
        async with asyncio.timeout(ORDER_TIMEOUT_S):
            answer = await load.carry_out(msgspec.json.decode(line, type=LoadOrder))
        print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
