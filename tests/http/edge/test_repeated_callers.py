"""A connection that repeats its headers is worked out once, and yet judged anew at every request."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.people.tokens import hashed
from simpletuner_fleet.http.access.credential_cache import CachedCredentials
from simpletuner_fleet.http.edge.edge import EdgeSettings
from simpletuner_fleet.http.edge.routes import ANY_USER, WORKER, Call, Route
from simpletuner_fleet.http.server.serving import Listening
from tests.http.edge_kit import ADMIN, WORKER_TOKEN, MemoryCredentials, running

TIMES = 4
"""The first request is parsed, the second is the first that repeats it, and the others find what it has left."""
Answer = tuple[int, dict[str, Any]]


async def tell(call: Call[bytes]) -> dict[str, Any]:
    return {
        "name": call.principal.name,
        "ip": call.ip,
        "secure": call.secure,
        "user": call.headers.get("x-user", ""),
    }


ROUTES = [
    Route("POST", "/api/workers/tell", tell, WORKER, body=bytes, prompt=True),
    Route("POST", "/api/tell", tell, ANY_USER, body=bytes, prompt=True),
]


class KeptConnection:
    """Sends the same headers again and again over one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: str) -> None:
        self._reader, self._writer, self._headers = reader, writer, headers

    async def post(self, path: str) -> Answer:
        request = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
            f"{self._headers}Content-Length: 1\r\n\r\n."
        )
        self._writer.write(request.encode())
        head = (await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 10)).decode()
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
        return int(head[9:12]), json.loads(await self._reader.readexactly(length))


@asynccontextmanager
async def kept(listening: Listening, headers: str) -> AsyncIterator[KeptConnection]:
    reader, writer = await asyncio.open_connection(listening.host, listening.port)
    try:
        yield KeptConnection(reader, writer, headers)
    finally:
        writer.close()


async def answers(
    source: MemoryCredentials,
    path: str,
    headers: str,
    then: Callable[[CachedCredentials], None],
    **more: Any,
) -> tuple[list[Answer], Answer]:
    """Returns the answers to the same request over one connection, and the second one after `then`."""
    cached = CachedCredentials(source)
    async with (
        running(ROUTES, credentials=cached, **more) as here,
        kept(here.listening, headers) as connection,
    ):
        before = [await connection.post(path) for _ in range(TIMES)]
        then(cached)
        await connection.post(path)  # which looks it up, and the next one finds what that has left
        return before, await connection.post(path)


async def test_a_token_that_is_revoked_is_refused_on_the_connection_that_has_shown_it() -> None:
    source = MemoryCredentials()

    def revoke(cached: CachedCredentials) -> None:
        source.workers.clear()
        cached.forget(hashed(WORKER_TOKEN))

    before, (status, problem) = await answers(
        source, "/api/workers/tell", f"X-Worker-Token: {WORKER_TOKEN}\r\n", revoke
    )
    assert [answer[1]["name"] for answer in before] == ["gpu-1"] * TIMES
    assert (status, problem["code"]) == (401, "invalid_token")


async def test_a_worker_that_was_renamed_has_its_new_name_on_the_same_connection() -> None:
    source, token_hash = MemoryCredentials(), hashed(WORKER_TOKEN)

    def rename(cached: CachedCredentials) -> None:
        source.workers[token_hash] = replace(source.workers[token_hash], name="gpu-2")
        cached.forget(token_hash)

    before, after = await answers(source, "/api/workers/tell", f"X-Worker-Token: {WORKER_TOKEN}\r\n", rename)
    assert [answer[1]["name"] for answer in before] == ["gpu-1"] * TIMES
    assert after[1]["name"] == "gpu-2"


async def test_a_token_expires_on_a_connection_that_has_shown_it_before() -> None:
    source, token_hash = MemoryCredentials(), hashed(ADMIN)
    source.api_tokens[token_hash] = replace(source.api_tokens[token_hash], expires_at=50.0)
    now = [10.0]
    before, (status, problem) = await answers(
        source,
        "/api/tell",
        f"Authorization: Bearer {ADMIN}\r\n",
        lambda cached: now.__setitem__(0, 50.0),
        now=lambda: now[0],
    )
    assert [answer[1]["name"] for answer in before] == ["admin"] * TIMES
    assert (status, problem["code"]) == (401, "invalid_token")


async def test_a_worker_and_a_person_behind_one_connection_are_told_apart() -> None:
    both = f"X-Worker-Token: {WORKER_TOKEN}\r\nAuthorization: Bearer {ADMIN}\r\n"
    async with (
        running(ROUTES, credentials=CachedCredentials(MemoryCredentials())) as here,
        kept(here.listening, both) as connection,
    ):
        names = [
            (await connection.post(path))[1]["name"]
            for _ in range(TIMES)
            for path in ("/api/workers/tell", "/api/tell")
        ]
    assert names == ["gpu-1", "admin"] * TIMES


async def test_headers_that_name_a_user_are_taken_away_from_every_request_of_a_stranger() -> None:
    settings = EdgeSettings(
        trusted_proxies="192.0.2.1", asserted_headers=frozenset({"x-user"}), user_header="x-user"
    )
    before, after = await answers(
        MemoryCredentials(),
        "/api/tell",
        f"X-User: root\r\nAuthorization: Bearer {ADMIN}\r\n",
        lambda cached: None,
        settings=settings,
    )
    assert [answer[1]["user"] for answer in (*before, after)] == [""] * (TIMES + 1)


async def test_a_trusted_proxy_tells_address_and_protocol_in_every_request() -> None:
    settings = EdgeSettings(
        trusted_proxies="127.0.0.1", asserted_headers=frozenset({"x-user"}), user_header="x-user"
    )
    forwarded = "X-Forwarded-For: 198.51.100.7\r\nX-Forwarded-Proto: https\r\nX-User: ann\r\n"
    before, after = await answers(
        MemoryCredentials(),
        "/api/tell",
        f"{forwarded}Authorization: Bearer {ADMIN}\r\n",
        lambda cached: None,
        settings=settings,
    )
    for status, answer in (*before, after):
        assert (status, answer["ip"], answer["secure"], answer["user"]) == (200, "198.51.100.7", True, "ann")
