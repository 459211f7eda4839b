"""Two servers in one process, a leader and a follower, over real sockets."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import httpx2

from simpletuner_fleet.core.leadership import Lease
from simpletuner_fleet.http.peers.proof import PASSED_ON
from tests.http.edge_kit import raw_exchange
from tests.http.peers.peers_kit import TERM, Peer, looks, pair, served


async def test_requests_pass_through_a_follower_and_answers_come_back_with_the_leaders_term() -> None:
    async with pair() as (_, _, client):
        for _ in range(3):
            answer = await client.get("/look")
            assert answer.json()["ip"] == "127.0.0.1"
            assert answer.headers["x-fleet-term"] == str(TERM)
        assert (await client.get("/nowhere")).status_code == 404
        assert len((await client.get("/give")).content) == 3_000_000


async def test_a_head_through_a_follower_has_the_length_of_the_get_and_the_connection_goes_on() -> None:
    async with pair() as (_, follower, client):
        for _ in range(2):
            answer = await client.head("/give")
            assert (answer.status_code, answer.headers["content-length"]) == (200, "3000000")
        assert (await client.head("/nowhere")).headers["content-length"] != "0"
        request = b"HEAD /give HTTP/1.1\r\nhost: localhost\r\n\r\n"
        request += b"GET /look HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        first, second = (await raw_exchange(follower.at, request)).split(b"HTTP/1.1 200 OK\r\n")[1:]
        assert b"content-length: 3000000\r\n" in first
        assert first.endswith(b"\r\n\r\n")
        assert second.endswith(b"}")


async def test_bodies_pass_whole_with_a_length_and_in_chunks() -> None:
    content = bytes(range(256)) * 12_000

    async def pieces() -> AsyncIterator[bytes]:
        for begin in range(0, len(content), 50_000):
            yield content[begin : begin + 50_000]

    headers = {"content-type": "application/octet-stream"}
    async with pair() as (_, _, client):
        for body in (content, pieces()):
            answer = await client.put("/take", content=body, headers=headers)
            assert answer.json()["digest"] == hashlib.sha256(content).hexdigest()


async def test_a_refusal_comes_back_although_the_body_was_not_read() -> None:
    async with pair() as (_, follower, _):
        head = b"PUT /take HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\n"
        answer = await raw_exchange(follower.at, head + b"content-length: 10000000000\r\n\r\nx")
        assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_follower_whose_key_is_another_is_not_believed_about_callers() -> None:
    async with pair(secret=b"z" * 32) as (leader, _, client):
        assert (await client.get("/look")).json()["ip"] == "127.0.0.1"
        said = f"{TERM} 203.0.113.9 tls {'0' * 64}"
        async with httpx2.AsyncClient(base_url=leader.url, trust_env=False) as stranger:
            answer = await stranger.get("/look", headers={PASSED_ON: said})
            assert (answer.json()["ip"], answer.json()["secure"]) == ("127.0.0.1", False)


async def test_a_leader_that_is_not_sure_promises_nothing() -> None:
    async with pair() as (leader, _, client):
        leader.is_sure = False
        before = len(looks)
        answer = await client.get("/look")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_leader")
        assert len(looks) == before, "it was worked on all the same"
        assert (await client.get("/health/live")).status_code == 200


async def test_doubt_that_comes_while_a_request_is_worked_on_withholds_its_answer() -> None:
    async with pair() as (leader, _, client):
        headers = {"content-type": "application/octet-stream"}

        async def pieces() -> AsyncIterator[bytes]:
            yield b"one"
            await asyncio.sleep(0.3)
            leader.is_sure = False
            yield b"two"

        answer = await client.put("/take", content=pieces(), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "not_leader")


async def test_whoever_waits_for_a_leader_that_is_replaced_is_answered_at_once() -> None:
    async with pair() as (_, follower, client):
        waiting = asyncio.create_task(client.get("/hang"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        follower.lease = Lease(term=TERM + 1, holder="another", url="http://127.0.0.1:9")
        follower.roles.leader_changed()
        answer = await asyncio.wait_for(waiting, 5)
        assert (answer.status_code, answer.json()["code"]) == (503, "not_leader")


async def test_a_follower_that_stops_waits_for_nobody_elses_answer() -> None:
    async with pair() as (_, follower, client):
        waiting = asyncio.create_task(client.get("/hang"))
        await asyncio.sleep(0.3)
        follower.roles.stop()
        answer = await asyncio.wait_for(waiting, 5)
        assert (answer.status_code, answer.json()["code"]) == (503, "not_leader")


async def test_a_dead_leader_and_no_leader_are_told_in_our_own_words() -> None:
    async with served(Peer("follower")) as follower:
        answer = await raw_exchange(
            follower.at, b"GET /look HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )
        assert b"503" in answer.splitlines()[0]
        assert b"not_leader" in answer
        follower.lease = Lease(term=TERM, holder="leader", url="http://127.0.0.1:9")
        async with httpx2.AsyncClient(base_url=follower.url, trust_env=False) as client:
            answered = await client.get("/look")
            assert (answered.status_code, answered.headers["retry-after"]) == (503, "1")
            assert answered.json()["leader"] == "http://127.0.0.1:9"


async def test_nothing_goes_in_circles_between_two_that_think_the_other_leads() -> None:
    async with served(Peer("a")) as one, served(Peer("b")) as other:
        one.lease = Lease(term=TERM, holder="b", url=other.url)
        other.lease = Lease(term=TERM, holder="a", url=one.url)
        async with httpx2.AsyncClient(base_url=one.url, trust_env=False) as client:
            answer = await client.get("/look")
            assert (answer.status_code, answer.json()["code"]) == (503, "not_leader")


async def test_a_follower_is_ready_while_it_knows_a_leader_and_the_database_answers() -> None:
    async with pair() as (_, follower, client):
        assert (await client.get("/health/ready")).json()["role"] == "follower"
        follower.is_connected = False
        assert (await client.get("/health/ready")).status_code == 503
        follower.is_connected = True
        follower.lease = None
        assert (await client.get("/health/ready")).status_code == 503
