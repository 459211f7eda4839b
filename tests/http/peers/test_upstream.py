"""Connections to a leader: kept where nothing is left on them, and dropped where anything is odd."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from simpletuner_fleet.http.peers import upstream as upstreams
from simpletuner_fleet.http.peers.upstream import BROKEN, LeaderConnections, Upstream
from tests.http.api_kit import until
from tests.http.peers.scripted_leader import HANG_UP, OK, ScriptedLeader, scripted_leader

GET = b"GET /look HTTP/1.1\r\nhost: localhost\r\n\r\n"


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ScriptedLeader, LeaderConnections]]:
    async with scripted_leader() as leader:
        connections = LeaderConnections(leader.url, None)
        try:
            yield leader, connections
        finally:
            connections.close()


async def asked(upstream: Upstream) -> bytes:
    await upstream.send(GET)
    await upstream.read_head()
    return b"".join([piece async for piece in upstream.body()])


async def asked_and_given_back(connections: LeaderConnections) -> Upstream:
    upstream = await connections.take(fresh=False)
    await asked(upstream)
    connections.give_back(upstream, without_body=False)
    return upstream


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
)
async def test_a_connection_is_kept_after_a_whole_answer(answer: bytes) -> None:
    async with connected() as (leader, connections):
        leader.answer = lambda request: answer
        for _ in range(5):
            await asked_and_given_back(connections)
        assert leader.connections == [0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
async def test_a_connection_that_the_leader_will_close_is_not_kept(answer: bytes) -> None:
    async with connected() as (leader, connections):
        leader.answer = lambda request: answer
        for _ in range(3):
            await asked_and_given_back(connections)
        assert leader.connections == [0, 1, 2]


async def test_what_comes_unasked_is_the_answer_to_nothing() -> None:
    async with connected() as (leader, connections):
        kept = await asked_and_given_back(connections)
        assert kept.is_usable
        leader.writers[0].write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 4\r\n\r\nlate")
        await until(lambda: not kept.is_usable)
        upstream = await connections.take(fresh=False)
        assert await asked(upstream) == b"{}"
        assert leader.connections == [0, 1]


@pytest.mark.parametrize("second", [OK, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nother"])
async def test_two_answers_to_one_request_are_none(second: bytes) -> None:
    async with connected() as (leader, connections):
        leader.answer = lambda request: OK + second
        upstream = await connections.take(fresh=False)
        with pytest.raises(BROKEN):
            await asked(upstream)
        connections.drop(upstream)


async def test_a_connection_that_was_closed_or_idle_for_long_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected() as (leader, connections):
        kept = await asked_and_given_back(connections)
        leader.writers[0].close()
        await until(lambda: not kept.is_usable)
        await asked_and_given_back(connections)
        monkeypatch.setattr(upstreams, "MOST_IDLE_S", 0.0)
        await asked_and_given_back(connections)
        assert leader.connections == [0, 1, 2]


async def test_those_that_nobody_needs_any_more_are_closed_when_another_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected() as (leader, connections):
        many = [await connections.take(fresh=True) for _ in range(3)]
        for upstream in many:
            await asked(upstream)
            connections.give_back(upstream, without_body=False)
        monkeypatch.setattr(upstreams, "MOST_IDLE_S", 0.0)
        await asked_and_given_back(connections)
        await until(lambda: leader.left >= {0, 1, 2})


async def test_only_a_kept_connection_that_broke_before_any_answer_may_have_been_closed_before() -> None:
    async with connected() as (leader, connections):
        leader.answer = lambda request: HANG_UP
        first = await connections.take(fresh=True)
        with pytest.raises(BROKEN):
            await asked(first)
        assert not first.was_closed_before
        leader.answer = lambda request: OK
        kept = await asked_and_given_back(connections)
        leader.answer = lambda request: HANG_UP
        assert await connections.take(fresh=False) is kept
        with pytest.raises(BROKEN):
            await asked(kept)
        assert kept.was_closed_before


@pytest.mark.parametrize("by", ["the caller", "a change of leaders"])
async def test_a_connection_that_was_given_up_was_not_closed_by_the_leader(by: str) -> None:
    async with connected() as (leader, connections):
        kept = await asked_and_given_back(connections)
        leader.answer = lambda request: None
        assert await connections.take(fresh=False) is kept
        asking = asyncio.create_task(asked(kept))
        await until(lambda: len(leader.seen) == 2)
        kept.give_up() if by == "the caller" else connections.close()
        with pytest.raises(BROKEN):
            await asking
        assert not kept.was_closed_before
