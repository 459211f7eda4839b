"""The whole orchestrator in this process: real routes, real sockets, a store in memory, a clock one can turn."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from msgspec import Struct, field

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.http.access.credentials import remembered_credentials
from simpletuner_fleet.http.api.deps import Deps
from simpletuner_fleet.http.application import build_api
from simpletuner_fleet.http.edge.edge import EdgeSettings, ProblemPage
from simpletuner_fleet.http.edge.routes import Route
from simpletuner_fleet.http.server.serving import Listening, serve
from simpletuner_fleet.orchestrator.people import api_tokens
from simpletuner_fleet.orchestrator.sign_in.ways import SignIn
from simpletuner_fleet.orchestrator.sweep import sweep_once
from simpletuner_fleet.ports import Blobs, Store, Vault
from simpletuner_fleet.protocol.sse import Decoder
from simpletuner_fleet.store import MemoryStore

ADMIN = tokens.make("st", b"A" * 32)
GPU_CONFIG = {"trainer": "command", "settings": {"command": ["true"]}}
CPU_CONFIG = {**GPU_CONFIG, "resources": {"gpus": 0}}
PATIENCE_S = 5.0
UNUSED_TLS = ssl.create_default_context()
"""Every client would make its own, at 50 ms each."""


class TurnedClock:
    """Stands still until it is turned."""

    __test__ = False

    def __init__(self) -> None:
        self.at = 1_800_000_000.0

    def now(self) -> float:
        return self.at


class Running(Struct):
    deps: Deps
    clock: TurnedClock
    listening: Listening
    http: httpx2.AsyncClient
    """As the admin."""
    agents: "list[Agent]" = field(default_factory=list)

    @property
    def fleet(self) -> Fleet:
        return self.deps.fleet

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None) -> Any:
        answer = await self.http.post(path, json=body) if body is not None else await self.http.post(path)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    async def save_config(self, name: str = "c", body: Any = None) -> None:
        answer = await self.http.put(f"/api/configs/{name}", json=body or CPU_CONFIG)
        assert answer.status_code == 200, answer.text

    async def submit(self, **options: Any) -> dict[str, Any]:
        if "config_name" not in options and "config" not in options:
            options["config"] = CPU_CONFIG
        answer: dict[str, Any] = await self.post("/api/queue/submit", options)
        return answer

    async def job(self, job_id: str) -> dict[str, Any]:
        answer: dict[str, Any] = await self.get(f"/api/jobs/{job_id}")
        return answer

    async def create_worker(self, name: str = "gpu-1", **choices: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self.post("/api/admin/workers", {"name": name, **choices})
        return answer

    async def token(self, *permissions: str, name: str = "some") -> str:
        answer = await self.post("/api/admin/tokens", {"name": name, "permissions": list(permissions)})
        return str(answer["token"])

    def as_user(self, token: str | None) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx2.AsyncClient(
            base_url=self.listening.url, headers=headers, trust_env=False, verify=UNUSED_TLS
        )

    async def pass_time(self, seconds: float) -> None:
        """Health checks go on as they would."""
        step = self.fleet.policy.sweep_interval_s
        until = self.clock.at + seconds
        while self.clock.at < until:
            self.clock.at = min(until, self.clock.at + step)
            await sweep_once(self.fleet)

    async def worker(self, name: str = "gpu-1", gpus: int = 0, **facts: Any) -> "Agent":
        """Created, registered and streaming."""
        agent = Agent(self, await self.create_worker(name))
        await agent.register(gpus=gpus, **facts)
        await agent.open_stream()
        return agent


@asynccontextmanager
async def orchestrator(
    store: Store | None = None,
    policy: Policy | None = None,
    settings: EdgeSettings | None = None,
    blobs: Blobs | None = None,
    port: int = 0,
    clock: TurnedClock | None = None,
    vault: Vault | None = None,
    pages: Sequence[Route] = (),
    problem_page: ProblemPage | None = None,
    **choices: Any,
) -> AsyncIterator[Running]:
    own_store = None if store else MemoryStore()
    store = store or own_store
    assert store
    clock = clock or TurnedClock()
    hub = StreamHub()
    fleet = Fleet(store, FleetIndex(), clock, RandomIds(b"s" * 32), hub, policy or Policy(), vault)
    deps = Deps(
        fleet=fleet,
        hub=hub,
        blobs=blobs or MemoryBlobs(),
        credentials=remembered_credentials(fleet, hub, (choices.get("sign_in") or SignIn()).vouches),
        **choices,
    )
    edge = build_api(deps, settings or EdgeSettings(), pages=pages, problem_page=problem_page)
    await api_tokens.set_admin_token(fleet, ADMIN)
    await fleet.start()
    stop = asyncio.Event()
    ready: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(
        serve(edge, "127.0.0.1", port, None, ready.set_result, edge.end_streams, stop=stop)
    )
    listening = await asyncio.wait_for(ready, PATIENCE_S)
    running = Running(deps, clock, listening, httpx2.AsyncClient(verify=UNUSED_TLS))
    async with running.as_user(ADMIN) as running.http:
        try:
            yield running
        finally:
            deps.stopping = True
            for agent in running.agents:
                await agent.close()
            stop.set()
            await asyncio.wait_for(server, 10)
            await deps.background_tasks.finish(1.0)
            if own_store:
                await own_store.close()


class Events:
    """What a stream says, as it says it."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.ended = asyncio.Event()
        self._news = asyncio.Event()
        self._read = 0

    def take(self, name: str, event_id: str, data: dict[str, Any]) -> None:
        assert data["type"] == name
        self.seen.append(data)
        self.ids.append(event_id)
        self._news.set()

    async def next(self, kind: str, within_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next event of this kind, passing others over."""
        async with asyncio.timeout(within_s):
            while True:
                while self._read < len(self.seen):
                    self._read += 1
                    if self.seen[self._read - 1]["type"] == kind:
                        return self.seen[self._read - 1]
                self._news.clear()
                await self._news.wait()

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.seen if event["type"] == kind]


class Reading(Struct):
    events: Events
    task: "asyncio.Task[None]"

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait((self.task,))


async def read_events(http: httpx2.AsyncClient, path: str, **more: Any) -> Reading:
    """Opens the stream and goes on reading it in a task of its own; returns when the answer has begun."""
    events = Events()
    begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def read() -> None:
        try:
            async with http.stream("GET", path, timeout=None, **more) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    begun.set_exception(AssertionError(f"{answer.status_code} {answer.text}"))
                    return
                begun.set_result(200)
                decoder = Decoder()
                async for chunk in answer.aiter_raw():
                    for event in decoder.feed(chunk):
                        events.take(event.name, event.id, json.loads(event.data))
        finally:
            events.ended.set()

    task = asyncio.create_task(read())
    await asyncio.wait_for(begun, PATIENCE_S)
    return Reading(events, task)


class Agent:
    """Speaks the protocol as a worker of ours does, and does nothing by itself."""

    def __init__(self, running: Running, created: dict[str, Any], incarnation: str = "i-1") -> None:
        self.running = running
        self.id = str(created["worker_id"])
        self.token = str(created["token"])
        self.incarnation = incarnation
        self.seq = 0
        self.reading: Reading | None = None
        self.http = self._client()
        self._clients = [self.http]
        running.agents.append(self)

    async def close(self) -> None:
        if self.reading:
            await self.reading.close()
        for client in self._clients:
            await client.aclose()

    def _client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            base_url=self.running.listening.url,
            headers={"X-Worker-Token": self.token},
            trust_env=False,
            verify=UNUSED_TLS,
        )

    def use_token(self, token: str) -> None:
        self.token = token
        self.http = self._client()
        self._clients.append(self.http)

    @property
    def events(self) -> Events:
        assert self.reading
        return self.reading.events

    async def call(self, path: str, body: Any, expect: int = 200) -> Any:
        answer = await self.http.post(f"/api/workers/{path}", json=body)
        assert answer.status_code == expect, answer.text
        return answer.json()

    async def register(
        self, gpus: int | list[dict[str, Any]] | None = 0, expect: int = 200, **facts: Any
    ) -> Any:
        self.seq += 1
        listed = (
            [
                {"index": at, "uuid": f"GPU-{self.id}-{at}", "name": "NVIDIA A100", "vram_gb": 80}
                for at in range(gpus)
            ]
            if isinstance(gpus, int)
            else gpus
        )
        body = {
            "name": "whatever",
            "persistent": True,
            "gpus": listed,
            "trainers": ["command", "simpletuner"],
            "incarnation": self.incarnation,
            "seq": self.seq,
            "attempts": [],
            **facts,
        }
        return await self.call("register", body, expect)

    async def open_stream(self) -> Events:
        path = f"/api/workers/stream?worker_id={self.id}&incarnation={self.incarnation}"
        self.reading = await read_events(self.http, path)
        return self.reading.events

    async def close_stream(self) -> None:
        assert self.reading
        await self.reading.close()

    async def offer(self) -> dict[str, Any]:
        return await self.events.next("job_submit")

    async def accept(self, offer: dict[str, Any], expect: int = 200) -> Any:
        self.seq += 1
        body = {
            "attempt": offer["attempt"],
            "epoch": offer["epoch"],
            "incarnation": self.incarnation,
            "seq": self.seq,
        }
        return await self.call(f"job/{offer['job_id']}/accept", body, expect)

    async def report(self, offer: dict[str, Any], status: str, expect: int = 200, **more: Any) -> Any:
        body = {"status": status, "attempt": offer["attempt"], "epoch": offer["epoch"], **more}
        return await self.call(f"job/{offer['job_id']}/status", body, expect)

    async def heartbeat(self, *held: dict[str, Any], expect: int = 200, **more: Any) -> Any:
        return await self.call("heartbeat", self.heartbeat_body(*held, **more), expect)

    def heartbeat_body(self, *held: dict[str, Any], **more: Any) -> dict[str, Any]:
        attempts = [{"job_id": offer["job_id"], "epoch": offer["epoch"]} for offer in held]
        return {"worker_id": self.id, "attempts": attempts, "incarnation": self.incarnation, **more}

    async def take(self) -> dict[str, Any]:
        """The next offer, accepted."""
        offer = await self.offer()
        await self.accept(offer)
        return offer


async def until(condition: Any, within_s: float = PATIENCE_S) -> None:
    """Waits for what a background task of the server will do shortly."""
    async with asyncio.timeout(within_s):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return
            await asyncio.sleep(0.01)
