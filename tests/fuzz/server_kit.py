"""The whole orchestrator in this process, spoken to without sockets, so that thousands of messages cost seconds."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from devtools.fuzz.in_process_server import NO_LIMITS
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
from simpletuner_fleet.http.edge.edge import Edge, EdgeSettings
from simpletuner_fleet.http.edge.exchange import Exchange
from simpletuner_fleet.http.edge.streams import EventStream
from simpletuner_fleet.orchestrator.machines.provisioner import Provisioner
from simpletuner_fleet.orchestrator.people import api_tokens
from simpletuner_fleet.orchestrator.people.passwords import Cost, Passwords
from simpletuner_fleet.orchestrator.workers import attendance
from simpletuner_fleet.store import MemoryStore

ADMIN = tokens.make("st", b"A" * 32)
CPU_JOB = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}
HANGS_UP_AFTER_S = 0.02


class StandingClock:
    def now(self) -> float:
        return 1_800_000_000.0


class Answer(Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class PlayedExchange(Exchange):
    """A request that is whole from the beginning, of a caller who hangs up after it."""

    def __init__(self, method: str, path: str, query: bytes, headers: dict[str, str], body: bytes) -> None:
        readable = {
            name.lower(): value.encode("latin-1", "replace").decode("latin-1")
            for name, value in headers.items()
        }
        raw_path = path.encode("utf-8", "surrogateescape").decode("latin-1")
        super().__init__(method, raw_path, query, readable, "127.0.0.1", False)
        self._body = body
        self._head = b""
        self._sent: list[bytes] = []

    def whole_body(self) -> bytes | None:
        return self._body

    async def receive(self) -> tuple[bytes, bool]:
        body, self._body = self._body, b""
        return body, False

    def respond(self, head: bytes, body: bytes) -> None:
        self._head, self.begun = head, True
        self._sent.append(body)

    def begin(self, head: bytes) -> None:
        self._head, self.begun = head, True

    async def write(self, piece: bytes) -> None:
        self._sent.append(piece)

    def finish(self) -> None:
        """The caller has left already."""

    def on_lost(self, callback: Callable[[], object]) -> None:
        """They take what comes at once, and leave."""
        asyncio.get_running_loop().call_later(HANGS_UP_AFTER_S, callback)

    def hand_over(self, head: bytes, stream: EventStream) -> None:
        self._head, self.begun = head, True
        stream.lost()

    def cut(self, *, at_once: bool) -> None:
        """The caller has left already."""

    def answer(self) -> Answer:
        line, _, fields = self._head.decode("latin-1").partition("\r\n")
        pairs = (field.partition(": ") for field in fields.split("\r\n") if field)
        return Answer(int(line.split()[1]), {name: value for name, _, value in pairs}, b"".join(self._sent))


class RunningServer:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.blobs = MemoryBlobs()
        hub = StreamHub()
        self.fleet = Fleet(self.store, FleetIndex(), StandingClock(), RandomIds(b"s" * 32), hub, Policy())
        self.deps = Deps(
            fleet=self.fleet,
            hub=hub,
            blobs=self.blobs,
            credentials=remembered_credentials(self.fleet, hub),
            passwords=Passwords(Cost(memory_kib=64)),
            provisioner=Provisioner(self.fleet, Path("nowhere"), {}, {}),
        )
        self.edge: Edge = build_api(self.deps, EdgeSettings(limits=NO_LIMITS))

    async def open(self) -> "RunningServer":
        await api_tokens.set_admin_token(self.fleet, ADMIN)
        await self.fleet.start()
        return self

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
        query: bytes = b"",
    ) -> Answer:
        """One request whose caller hangs up after it: a stream ends at once."""
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        sent = {"host": "127.0.0.1:8001", "content-type": "application/json", **(headers or {})}
        exchange = PlayedExchange(method, path, query, sent, content)
        await self.edge(exchange)
        return exchange.answer()

    async def as_admin(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.ask(method, path, body, headers={"authorization": f"Bearer {ADMIN}"})
        assert answer.status < 300, answer
        return answer.json()

    async def submit(self, **options: Any) -> str:
        answer = await self.as_admin("POST", "/api/queue/submit", {"config": CPU_JOB, **options})
        return str(answer["job_id"])

    async def worker(self, name: str) -> "Peer":
        created = await self.as_admin("POST", "/api/admin/workers", {"name": name})
        peer = Peer(self, created["worker_id"], created["token"])
        await peer.say(
            "register",
            {"name": name, "persistent": True, "gpus": [], "trainers": ["command"], "attempts": [], "seq": 1},
        )
        await attendance.stream_opened(self.fleet, peer.id, "127.0.0.1", token_hash=tokens.hashed(peer.token))
        return peer


class Peer:
    """A worker, good or bad."""

    def __init__(self, server: RunningServer, worker_id: str, token: str) -> None:
        self.server = server
        self.id = worker_id
        self.token = token
        self.seq = 1

    @property
    def headers(self) -> dict[str, str]:
        return {"x-worker-token": self.token}

    async def say(self, what: str, body: Any) -> Any:
        answer = await self.server.ask("POST", f"/api/workers/{what}", body, headers=self.headers)
        assert answer.status == 200, answer
        return answer.json()

    async def offers(self) -> list[dict[str, Any]]:
        answer = await self.say("heartbeat", {"worker_id": self.id, "attempts": []})
        return list(answer["jobs"])

    async def accept(self, offer: dict[str, Any]) -> None:
        self.seq += 1
        body = {"attempt": offer["attempt"], "epoch": offer["epoch"], "seq": self.seq}
        await self.say(f"job/{offer['job_id']}/accept", body)


def in_path(text: str) -> str:
    return quote(text, safe="")
