"""Many workers that speak the protocol and run nothing, and submitters beside them: one process, orders on stdin."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import uvloop

from bench.load.wire import Connection, EventReader, get, post
from bench.machine import cpu_s

P = TypeVar("P", bound=asyncio.BaseProtocol)
CONNECTING_AT_ONCE = 64
STEP_TIMEOUT_S = 540.0


class Seat(msgspec.Struct):
    """A worker to play."""

    name: str
    token: str


class Setup(msgspec.Struct, kw_only=True):
    url: str
    admin_token: str
    seats: list[Seat]
    submit_body: str = "{}"


class Connect(msgspec.Struct, tag="connect"):
    pass


class Flow(msgspec.Struct, tag="flow"):
    """So many jobs in, as fast as they are taken, and so many out."""

    jobs: int
    submitters: int


class Attend(msgspec.Struct, tag="attend"):
    """Heartbeats, evenly spread, for a while; and now and then a job."""

    seconds: float
    heartbeat_s: float
    submits_per_s: float


Order = Connect | Flow | Attend


class Told(msgspec.Struct, kw_only=True):
    """The answer to every order."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    completed: int = 0
    beats: int = 0
    lost_streams: int = 0
    troubles: int = 0
    last_trouble: str = ""
    submitted_at: dict[str, float] = {}
    offered_at: dict[str, float] = {}


class Offer(msgspec.Struct):
    type: str
    job_id: str = ""
    attempt: int = 0
    epoch: int = 0


class JobAnswer(msgspec.Struct):
    job_id: str


_offer = msgspec.json.Decoder(Offer)
_job = msgspec.json.Decoder(JobAnswer)


class Player:
    """One worker: accepts what it is offered and says at once that it is done."""

    def __init__(self, crowd: "Crowd", seat: Seat) -> None:
        self._crowd = crowd
        self._seat = seat
        self._credential = f"x-worker-token: {seat.token}"
        self._calls: Connection | None = None
        self._seen: set[tuple[str, int]] = set()
        self.stream: EventReader | None = None

    async def connect(self) -> None:
        gpu = {"index": 0, "uuid": f"GPU-{self._seat.name}", "name": "NVIDIA A100-SXM4-80GB", "vram_gb": 80}
        hello = {
            "name": self._seat.name,
            "persistent": True,
            "gpu_count": 1,
            "gpus": [gpu],
            "trainers": ["command"],
            "attempts": [],
            "incarnation": self._seat.name,
            "seq": 1,
        }
        await self.call("/api/workers/register", msgspec.json.encode(hello))
        host = self._crowd.host
        request = get(host, f"/api/workers/stream?incarnation={self._seat.name}", self._credential)
        self.stream = await self._crowd.dial(lambda: EventReader(request, self._heard))
        await self.stream.opened

    async def beat(self) -> None:
        body = {"status": "idle", "attempts": [], "incarnation": self._seat.name}
        await self.call("/api/workers/heartbeat", msgspec.json.encode(body))

    async def call(self, path: str, body: bytes) -> bytes:
        if self._calls is None or not self._calls.open:
            self._calls = await self._crowd.dial(Connection)
        return await self._calls.ask(post(self._crowd.host, path, self._credential, body))

    def hang_up(self) -> None:
        """As the agent's connection pool does between two heartbeats."""
        if self._calls is not None:
            self._calls.close()

    def _heard(self, data: bytes) -> None:
        offer = _offer.decode(data)
        if offer.type != "job_submit" or (offer.job_id, offer.epoch) in self._seen:
            return
        self._seen.add((offer.job_id, offer.epoch))
        self._crowd.offered_at.setdefault(offer.job_id, time.monotonic())
        self._crowd.spawn(self._play(offer))

    async def _play(self, offer: Offer) -> None:
        turn = f'"attempt":{offer.attempt},"epoch":{offer.epoch},"incarnation":"{self._seat.name}"'
        path = f"/api/workers/job/{offer.job_id}"
        await self.call(f"{path}/accept", f"{{{turn}}}".encode())
        await self.call(f"{path}/status", f'{{{turn},"status":"completed","exit_code":0}}'.encode())
        self._crowd.one_completed()


class Crowd:
    def __init__(self, setup: Setup) -> None:
        parts = urlsplit(setup.url)
        self.host = parts.netloc
        self._address = (str(parts.hostname), int(parts.port or 80))
        self._players = [Player(self, seat) for seat in setup.seats]
        self._submit = post(
            self.host,
            "/api/queue/submit",
            f"authorization: Bearer {setup.admin_token}",
            setup.submit_body.encode(),
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._completed = 0
        self._wanted = 0
        self._all_done = asyncio.Event()
        self._troubles: list[str] = []
        self.submitted_at: dict[str, float] = {}
        self.offered_at: dict[str, float] = {}

    async def obey(self, order: Order) -> Told:
        began, cpu_began = time.monotonic(), cpu_s(os.getpid())
        completed_before = self._completed
        self._troubles.clear()
        self.submitted_at, self.offered_at = {}, {}
        beats = 0
        match order:
            case Connect():
                await self._connect()
            case Flow(jobs, submitters):
                await self._flow(jobs, submitters)
            case Attend(seconds, heartbeat_s, submits_per_s):
                beats = await self._attend(seconds, heartbeat_s, submits_per_s)
        return Told(
            seconds=time.monotonic() - began,
            cpu_s=cpu_s(os.getpid()) - cpu_began,
            completed=self._completed - completed_before,
            beats=beats,
            lost_streams=sum(player.stream is not None and player.stream.lost for player in self._players),
            troubles=len(self._troubles),
            last_trouble=self._troubles[-1] if self._troubles else "",
            submitted_at=self.submitted_at,
            offered_at=self.offered_at,
        )

    async def dial(self, protocol: Callable[[], P]) -> P:
        _, made = await asyncio.get_running_loop().create_connection(protocol, *self._address)
        return made

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def one_completed(self) -> None:
        self._completed += 1
        if self._completed == self._wanted:
            self._all_done.set()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._troubles.append(f"{type(error).__name__}: {error}")

    async def _connect(self) -> None:
        gate = asyncio.Semaphore(CONNECTING_AT_ONCE)

        async def connect(player: Player) -> None:
            async with gate:
                await player.connect()

        await asyncio.gather(*(connect(player) for player in self._players))

    async def _flow(self, jobs: int, submitters: int) -> None:
        self._all_done.clear()
        self._wanted = self._completed + jobs
        left = iter(range(jobs))

        async def submit() -> None:
            connection = await self.dial(Connection)
            for _ in left:
                await connection.ask(self._submit)
            connection.close()

        await asyncio.gather(*(submit() for _ in range(submitters)), self._all_done.wait())

    async def _attend(self, seconds: float, heartbeat_s: float, submits_per_s: float) -> int:
        end = time.monotonic() + seconds
        beats = 0

        async def beat_on(player: Player, offset_s: float) -> None:
            nonlocal beats
            await asyncio.sleep(offset_s)
            while time.monotonic() < end:
                await player.beat()
                player.hang_up()
                beats += 1
                await asyncio.sleep(heartbeat_s)

        for number, player in enumerate(self._players):
            self.spawn(beat_on(player, heartbeat_s * number / len(self._players)))
        if submits_per_s:
            await self._submit_steadily(end, 1 / submits_per_s)
        await asyncio.sleep(max(0.0, end - time.monotonic()))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return beats

    async def _submit_steadily(self, end: float, every_s: float) -> None:
        connection = await self.dial(Connection)
        while time.monotonic() < end - 1:
            sent = time.monotonic()
            answer = _job.decode(await connection.ask(self._submit))
            self.submitted_at[answer.job_id] = sent
            await asyncio.sleep(max(0.0, every_s - (time.monotonic() - sent)))


async def main() -> None:
    loop = asyncio.get_running_loop()
    crowd = Crowd(msgspec.json.decode(await loop.run_in_executor(None, sys.stdin.readline), type=Setup))
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        async with asyncio.timeout(STEP_TIMEOUT_S):
            told = await crowd.obey(msgspec.json.decode(line, type=Order))
        print(msgspec.json.encode(told).decode(), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
