"""A worker with several addresses of its orchestrators, against real sockets that answer as told."""

import asyncio
import json

import pytest

from devtools.ports import free_port
from simpletuner_fleet.agent.wire.addresses import Address
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.errors import Refused, TokenRejected, Unreachable
from simpletuner_fleet.protocol.messages import Heartbeat, Register
from simpletuner_fleet.protocol.paths import ends_of
from simpletuner_fleet.protocol.problems import TYPE_PREFIX
from tests.agent.wire.test_call_connections import serving

HEARTBEAT = Heartbeat(worker_id="w_1")


def answer(status: int, document: dict[str, object], term: int | None = None) -> bytes:
    body = json.dumps(document).encode()
    said = f"X-Fleet-Term: {term}\r\n" if term is not None else ""
    return f"HTTP/1.1 {status} X\r\n{said}Content-Length: {len(body)}\r\n\r\n".encode() + body


def problem(status: int, code: str, term: int | None = None) -> bytes:
    return answer(status, {"type": TYPE_PREFIX + code, "status": status, "code": code, "detail": code}, term)


def good(name: str, term: int | None = None) -> bytes:
    return answer(200, {"status": name}, term)


NOT_LEADER = problem(503, "not_leader")


def client_of(*urls: str) -> OrchestratorClient:
    async def no_tls() -> None:
        return None

    return OrchestratorClient(urls[0], lambda: "wt_x", None, [Address(url, no_tls) for url in urls[1:]])


def closed_port() -> str:
    return f"http://127.0.0.1:{free_port()}"


async def test_a_call_goes_on_to_the_next_address_where_nobody_listens_and_stays_there() -> None:
    async with serving(good("b")) as second:
        client = client_of(closed_port(), second.url)
        assert (await client.heartbeat(HEARTBEAT)).status == "b"
        assert client.url == second.url
        assert (await client.heartbeat(HEARTBEAT)).status == "b"
        assert second.connections == 1
        await client.close()


async def test_a_call_goes_on_to_the_next_address_where_somebody_does_not_lead() -> None:
    async with serving(NOT_LEADER) as first, serving(good("b")) as second:
        client = client_of(first.url, second.url)
        assert (await client.heartbeat(HEARTBEAT)).status == "b"
        await client.close()


async def test_an_orchestrators_own_refusal_is_asked_of_nobody_else() -> None:
    async with serving(problem(401, "invalid_token")) as first, serving(good("b")) as second:
        client = client_of(first.url, second.url)
        with pytest.raises(TokenRejected):
            await client.heartbeat(HEARTBEAT)
        assert second.requests == []
        await client.close()


async def test_nobody_listens_is_believed_only_where_nobody_listens_anywhere() -> None:
    client = client_of(closed_port(), closed_port())
    with pytest.raises(Unreachable) as everywhere:
        await client.heartbeat(HEARTBEAT)
    assert everywhere.value.refused
    await client.close()
    async with serving(None) as hangs_up:
        client = client_of(closed_port(), hangs_up.url)
        with pytest.raises(Unreachable) as somewhere:
            await client.heartbeat(HEARTBEAT)
        assert not somewhere.value.refused
        await client.close()
    async with serving(NOT_LEADER) as follower:
        client = client_of(closed_port(), follower.url)
        with pytest.raises(Refused):
            await client.heartbeat(HEARTBEAT)
        await client.close()


async def test_what_a_replaced_leader_says_is_weather_whatever_it_says() -> None:
    async with (
        serving(good("a", 7), good("late", 7), problem(409, "stale_attempt", 7)) as first,
        serving(good("b", 9)) as second,
    ):
        client = client_of(first.url, second.url)
        assert (await client.heartbeat(HEARTBEAT)).status == "a"
        client._addresses.turn_from(client._addresses.current)
        assert (await client.heartbeat(HEARTBEAT)).status == "b"
        for _ in range(2):
            client._addresses.turn_from(client._addresses.current)
            assert (await client.heartbeat(HEARTBEAT)).status == "b"
        assert len(first.requests) == 3
        await client.close()


async def test_an_orchestrator_that_is_alone_says_no_term_and_is_believed() -> None:
    async with serving(good("a", 7), good("alone")) as server:
        client = client_of(server.url)
        await client.heartbeat(HEARTBEAT)
        assert (await client.heartbeat(HEARTBEAT)).status == "alone"
        await client.close()


@pytest.mark.parametrize(("term", "is_certain"), [(None, True), (7, False)])
async def test_a_refusal_proves_a_death_only_where_nobody_else_may_lead(
    term: int | None, is_certain: bool
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        document = {
            "worker_id": "w_1",
            "name": "w",
            "status": "idle",
            "heartbeat_interval_s": 1,
            "heartbeat_timeout_s": 5,
            "stream_url": "/",
            "ends": ends_of(writer.transport, client=False),
        }
        writer.write(answer(200, document, term))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = client_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await client.register(Register(name="w"))
    server.close()
    await server.wait_closed()
    assert await client.outage.is_certain(0.1) is is_certain
    await client.close()
