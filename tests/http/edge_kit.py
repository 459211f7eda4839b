"""What the tests of the edge share: credentials in memory, a tiny table, and the server in this process."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt, AttemptState
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.people.accounts import Role, Session, User
from simpletuner_fleet.core.people.permissions import role_permissions
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.http.access.credential_cache import CredentialSource, SignedIn
from simpletuner_fleet.http.edge.edge import Edge, EdgeSettings, build_app
from simpletuner_fleet.http.edge.routes import Route
from simpletuner_fleet.http.server.serving import Listening, serve
from simpletuner_fleet.ports import ApiToken

ADMIN = tokens.make("st", b"a" * 32)
READER = tokens.make("st", b"r" * 32)
NOBODY = tokens.make("st", b"n" * 32)
EXPIRED = tokens.make("st", b"e" * 32)
REVOKED = tokens.make("st", b"v" * 32)
STRANGER = tokens.make("st", b"s" * 32)
CHOSEN = "a-long-token-that-the-operator-chose-0001"
WORKER_TOKEN = tokens.make("wt", b"w" * 32)
OTHER_WORKER_TOKEN = tokens.make("wt", b"x" * 32)
SESSION = tokens.make("ss", b"k" * 32)
VIEWER_SESSION = tokens.make("ss", b"l" * 32)
UPLOAD_TOKEN = tokens.make("ut", b"u" * 32)


def api_token(secret: str, name: str, *permissions: str, **more: Any) -> ApiToken:
    return ApiToken(
        id=f"t_{name}",
        name=name,
        token_hash=tokens.hashed(secret),
        permissions=permissions,
        created_at=0,
        **more,
    )


def signed_in(secret: str, role: Role, **more: Any) -> SignedIn:
    user = User(id=f"u_{role}", name=f"a {role}", role=role, created_at=0, language="ja")
    fields = {"created_at": time.time(), "seen_at": time.time(), **more}
    session = Session(token_hash=tokens.hashed(secret), user_id=user.id, **fields)
    return SignedIn(session, user, role_permissions(role), role is not Role.ADMIN)


class MemoryCredentials:
    """The whole promise in four dictionaries."""

    def __init__(self) -> None:
        known = [
            api_token(ADMIN, "admin", "*"),
            api_token(READER, "reader", "jobs.read"),
            api_token(NOBODY, "nobody"),
            api_token(EXPIRED, "expired", "*", expires_at=1.0),
            api_token(REVOKED, "revoked", "*", revoked_at=1.0),
            api_token(CHOSEN, "chosen", "admin.*"),
        ]
        worker = Worker(
            id="w_1",
            name="gpu-1",
            token_hash=tokens.hashed(WORKER_TOKEN),
            token_created_at=0,
            created_at=0,
        )
        attempt = Attempt(
            id="a_1",
            job_id="j_1",
            number=1,
            epoch=7,
            worker_id="w_1",
            worker_name="gpu-1",
            state=AttemptState.RUNNING,
            offered_at=0,
            upload_token_hash=tokens.hashed(UPLOAD_TOKEN),
        )
        self.api_tokens = {token.token_hash: token for token in known}
        self.workers = {worker.token_hash: worker}
        self.attempts = {attempt.upload_token_hash: attempt}
        people = [signed_in(SESSION, Role.ADMIN), signed_in(VIEWER_SESSION, Role.VIEWER)]
        self.sessions = {known.session.token_hash: known for known in people}
        self.renewed: list[tuple[str, float]] = []
        self.noted: list[tuple[str, float]] = []
        self.lookups = 0

    async def api_token(self, token_hash: str) -> ApiToken | None:
        self.lookups += 1
        await asyncio.sleep(0)
        return self.api_tokens.get(token_hash)

    async def worker(self, token_hash: str) -> Worker | None:
        self.lookups += 1
        await asyncio.sleep(0)
        return self.workers.get(token_hash)

    async def attempt(self, token_hash: str) -> Attempt | None:
        return self.attempts.get(token_hash)

    async def session(self, token_hash: str) -> SignedIn | None:
        self.lookups += 1
        await asyncio.sleep(0)
        return self.sessions.get(token_hash)

    async def note_token_use(self, token_hash: str, now: float) -> None:
        self.noted.append((token_hash, now))
        self.api_tokens[token_hash] = replace(self.api_tokens[token_hash], last_used_at=now)

    async def renew_session(self, token_hash: str, now: float) -> None:
        self.renewed.append((token_hash, now))
        known = self.sessions[token_hash]
        self.sessions[token_hash] = replace(known, session=replace(known.session, seen_at=now))


class Running(Struct):
    edge: Edge
    listening: Listening
    client: httpx2.AsyncClient
    stop: asyncio.Event
    server: "asyncio.Task[None]"


@asynccontextmanager
async def running(
    routes: Sequence[Route],
    deps: Any = None,
    *,
    tls: ssl.SSLContext | None = None,
    verify: ssl.SSLContext | bool = True,
    settings: EdgeSettings | None = None,
    credentials: CredentialSource | None = None,
    **more: Any,
) -> AsyncIterator[Running]:
    """The real server on a free loopback port, with a client that talks to it over the real network stack."""
    edge = build_app(routes, deps, credentials=credentials or MemoryCredentials(), settings=settings, **more)
    stop = asyncio.Event()
    ready: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(
        serve(edge, "127.0.0.1", 0, tls, ready.set_result, edge.end_streams, stop=stop)
    )
    await asyncio.wait((ready, server), return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        await server
    listening = ready.result()
    async with httpx2.AsyncClient(base_url=listening.url, verify=verify, trust_env=False) as client:
        yield Running(edge, listening, client, stop, server)
    stop.set()
    await asyncio.wait_for(server, 10)


async def raw_exchange(listening: Listening, request: bytes) -> bytes:
    """Sends bytes as they are and reads until the server closes."""
    reader, writer = await asyncio.open_connection(listening.host, listening.port)
    try:
        writer.write(request)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
