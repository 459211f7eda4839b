"""How a follower uses its connections to the leader, and which requests it makes again."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx2
import pytest

from simpletuner_fleet.core.leadership import Lease
from simpletuner_fleet.http.peers import forwarder
from simpletuner_fleet.http.peers.forwarder import may_be_repeated
from tests.http.api_kit import until
from tests.http.edge_kit import raw_exchange
from tests.http.peers.peers_kit import TERM, Peer, pair
from tests.http.peers.scripted_leader import (
    HANG_UP,
    OK,
    Request,
    ScriptedLeader,
    follower_of,
    scripted_leader,
)

HEARTBEAT = "/api/workers/heartbeat"
JOIN = "/api/workers/join"
SUBMIT = "/api/queue/submit"


@asynccontextmanager
async def scene() -> AsyncIterator[tuple[ScriptedLeader, Peer, httpx2.AsyncClient]]:
    """A leader that does as the test says, a real follower, and a client of the follower."""
    async with (
        scripted_leader() as leader,
        follower_of(leader) as follower,
        httpx2.AsyncClient(base_url=follower.url, trust_env=False, timeout=5) as client,
    ):
        yield leader, follower, client


def hangs_up_on_the_first_again(leader: ScriptedLeader) -> None:
    """From now on the first connection is closed as soon as a request comes; others are answered."""
    leader.answer = lambda request: HANG_UP if request.connection == 0 else OK


def in_chunks(path: str, *chunks: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return head.encode() + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)


async def test_a_connection_to_the_leader_is_used_for_one_request_after_another() -> None:
    headers = {"content-type": "application/octet-stream"}
    async with pair() as (_, _, client):
        first = (await client.get("/look")).json()["ends"]
        assert (await client.get("/nowhere")).status_code == 404
        assert len((await client.get("/give")).content) == 3_000_000
        for _ in range(3):
            assert (await client.get("/look")).json()["ends"] == first
        assert (await client.put("/take", content=b"x" * 300_000, headers=headers)).json()["ends"] != first


async def test_every_caller_gets_their_own_answer_over_the_connections_they_share() -> None:
    async with scene() as (leader, _, client):
        leader.answer = lambda request: OK.replace(
            b"2\r\n\r\n{}", b"%d\r\n\r\n%b" % (len(request.body), request.body)
        )

        async def ask(number: int) -> bytes:
            return (await client.post(HEARTBEAT, content=b"mine is %d" % number)).content

        for _ in range(3):
            answers = await asyncio.gather(*(ask(number) for number in range(20)))
            assert answers == [b"mine is %d" % number for number in range(20)]
        assert len(leader.writers) <= 20


@pytest.mark.parametrize(("method", "path"), [("GET", SUBMIT), ("POST", HEARTBEAT)])
async def test_what_may_be_repeated_is_repeated_once_where_a_kept_connection_was_closed(
    method: str, path: str
) -> None:
    async with scene() as (leader, _, client):
        assert (await client.request(method, path, content=b"one")).status_code == 200
        hangs_up_on_the_first_again(leader)
        assert (await client.request(method, path, content=b"two")).status_code == 200
        sent = [(request.connection, request.body) for request in leader.seen]
        assert sent == [(0, b"one"), (0, b"two"), (1, b"two")]
        leader.answer = lambda request: HANG_UP
        assert (await client.request(method, path)).status_code == 503
        assert leader.connections == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("path", [SUBMIT, JOIN])
async def test_what_may_not_be_repeated_goes_over_a_connection_of_its_own(path: str) -> None:
    async with scene() as (leader, _, client):
        assert (await client.get("/look")).status_code == 200
        hangs_up_on_the_first_again(leader)
        assert (await client.post(path, content=b"once")).status_code == 200
        assert leader.connections == [0, 1]
        leader.answer = lambda request: HANG_UP
        answer = await client.post(path, content=b"once")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_leader")
        assert leader.connections == [0, 1, 2]


async def test_a_body_in_chunks_is_whole_when_it_is_repeated() -> None:
    async with scene() as (leader, follower, client):
        assert (await client.get("/look")).status_code == 200
        hangs_up_on_the_first_again(leader)
        request = in_chunks(HEARTBEAT, b"first ", b"second") + b"0\r\n\r\n"
        assert (await raw_exchange(follower.at, request)).startswith(b"HTTP/1.1 200 ")
        assert leader.seen[1:] == [
            Request(0, f"POST {HEARTBEAT}", b"first second"),
            Request(1, f"POST {HEARTBEAT}", b"first second"),
        ]


async def test_a_body_that_comes_in_pieces_is_never_repeated() -> None:
    async with scene() as (leader, _, client):
        assert (await client.get("/look")).status_code == 200
        hangs_up_on_the_first_again(leader)

        async def pieces() -> AsyncIterator[bytes]:
            yield b"first "
            await until(lambda: len(leader.writers) == 2)
            yield b"second"

        assert (await client.post(HEARTBEAT, content=pieces())).status_code == 200
        assert leader.seen[1:] == [Request(1, f"POST {HEARTBEAT}", b"first second")]


async def test_a_request_whose_caller_has_left_is_not_repeated() -> None:
    async with scene() as (leader, _, client):
        assert (await client.post(HEARTBEAT)).status_code == 200
        leader.answer = lambda request: None
        waiting = asyncio.create_task(client.post(HEARTBEAT))
        await until(lambda: len(leader.seen) == 2)
        waiting.cancel()
        await until(lambda: 0 in leader.left)
        leader.answer = lambda request: OK
        assert (await client.get("/look")).status_code == 200
        assert [request.line for request in leader.seen[2:]] == ["GET /look"]


async def test_a_head_whose_length_nobody_said_gets_none_made_up() -> None:
    async with scene() as (leader, _, client):
        leader.answer = lambda request: b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"
        for _ in range(2):
            answer = await client.head("/look")
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain")
            assert "content-length" not in answer.headers


async def test_an_answer_that_breaks_off_is_not_asked_for_again() -> None:
    async with scene() as (leader, _, client):
        assert (await client.get("/look")).status_code == 200

        def break_off(request: Request) -> bytes:
            leader.writers[request.connection].write(b"HTTP/1.1 200 OK\r\ncontent-")
            return HANG_UP

        leader.answer = break_off
        assert (await client.get("/look")).status_code == 503
        assert leader.connections == [0, 0]


async def test_a_body_that_becomes_unreadable_is_refused_at_once_and_the_leader_hears_no_more() -> None:
    async with scene() as (leader, follower, _):
        reader, writer = await asyncio.open_connection(follower.at.host, follower.at.port)
        writer.write(in_chunks(HEARTBEAT, b"first"))
        await until(lambda: leader.writers)
        writer.write(b"nonsense\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400 ")
        await until(lambda: 0 in leader.left)


@pytest.mark.parametrize(
    ("method", "path", "is_harmless"),
    [
        ("GET", "/api/jobs", True),
        ("HEAD", "/api/jobs", True),
        ("POST", HEARTBEAT, True),
        ("PUT", "/api/workers/job/j_1/logs", True),
        ("POST", JOIN, False),
        ("POST", SUBMIT, False),
        ("PUT", "/api/configs/c", False),
        ("DELETE", "/api/jobs/j_1", False),
        ("POST", "/api/admin/workers", False),
    ],
)
def test_reading_and_the_messages_of_workers_may_be_repeated(
    method: str, path: str, is_harmless: bool
) -> None:
    assert may_be_repeated(method, path) == is_harmless


async def test_a_caller_who_does_not_read_the_answer_is_dropped_and_frees_the_connection_to_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarder, "WRITE_TIMEOUT_S", 0.2)
    async with scene() as (leader, follower, _):
        leader.answer = lambda request: (
            b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n" + bytes(50_000_000)
        )
        with socket.create_connection(("127.0.0.1", follower.at.port)) as caller:
            caller.sendall(b"GET /give HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await until(lambda: leader.left == {0})
            came_bytes = 0
            with suppress(ConnectionResetError):
                while piece := await asyncio.to_thread(caller.recv, 1_000_000):
                    came_bytes += len(piece)
            assert came_bytes < 50_000_000


async def test_who_waited_for_a_leader_that_was_frozen_from_its_first_moment_is_passed_on_to_the_next() -> (
    None
):
    """Its certificate is asked for before anything else: each who waited would ask it in turn, the next leader's too."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        async with scene() as (_, follower, client):
            client.timeout = httpx2.Timeout(120.0)
            next_lease, url = follower.lease, f"https://127.0.0.1:{frozen.getsockname()[1]}"
            follower.lease = Lease(term=TERM - 1, holder="frozen", url=url, fingerprint="ab" * 32)
            waiting = [asyncio.create_task(client.get(SUBMIT)) for _ in range(6)]
            await asyncio.sleep(0.5)
            follower.lease = next_lease
            follower.roles.leader_changed()
            async with asyncio.timeout(8):
                assert (await client.get(SUBMIT)).status_code == 200
                answered = [(await one).status_code for one in waiting]
    assert answered.count(200) >= 5, answered
