"""A line between nodes that falls silent, with nobody told: no end waits for the other for ever."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from devtools.ports import free_port
from simpletuner_fleet import __version__
from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.nodes import follower as follower_module
from simpletuner_fleet.agent.nodes import node_connection
from simpletuner_fleet.agent.nodes.follower import FirstNode, Follower
from simpletuner_fleet.agent.nodes.host import NodeHost, WorkerLease
from simpletuner_fleet.agent.nodes.messages import FetchContent, JoinNode, Welcome
from simpletuner_fleet.agent.nodes.node_connection import (
    FROM_FOLLOWER,
    NodeConnection,
    dial,
    kept_secret,
    tls_context,
)
from simpletuner_fleet.agent.nodes.ranks import NodeParts
from simpletuner_fleet.agent.nodes.spanned import SpannedAttempt
from simpletuner_fleet.agent.wire.errors import Unreachable
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.workers.worker import Gpu
from simpletuner_fleet.protocol.messages import GpuReport
from simpletuner_fleet.providers.node_secret import new_node_secret
from tests.agent.answering import OFFER
from tests.e2e.proxy import TO_SERVER, Proxy
from tests.http.api_kit import until

LEASE_S = 3.0
OWN = (Gpu(index=0, uuid="GPU-own"),)


class NoParts(NodeParts):
    """A node that has nothing to do."""

    def __init__(self) -> None:
        self.welcomes = 0

    def held(self) -> list[Turn]:
        return []

    def welcomed(self, printed: object) -> None:
        self.welcomes += 1

    def renew(self, since: float, lease_s: float) -> None: ...


class SlowContent:
    """Gives a first piece, and then nothing more."""

    def fetch_object(
        self, job_id: str, sha256: str, offset: int
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._fetched()

    fetch_data = fetch_object

    @asynccontextmanager
    async def _fetched(self) -> AsyncIterator[AsyncIterator[bytes]]:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.Event().wait()

        yield pieces()


class EndlessContent(SlowContent):
    """Gives more than anybody takes."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    @asynccontextmanager
    async def _fetched(self) -> AsyncIterator[AsyncIterator[bytes]]:
        async def pieces() -> AsyncIterator[bytes]:
            while True:
                yield bytes(2**20)

        try:
            yield pieces()
        finally:
            self.left.set()


class Relay:
    """Passes bytes on between the nodes; lines that are frozen bring nothing more, and stay open at both ends."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._pumps: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    def freeze(self) -> None:
        for pump in self._pumps:
            pump.cancel()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Relay"]:
        server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self.freeze()
            server.close()
            for writer in self._writers:
                writer.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, back]
        self._pumps += [
            asyncio.create_task(_pumped(reader, back)),
            asyncio.create_task(_pumped(onward, writer)),
        ]


async def _pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return kept_secret(new_node_secret(), None, tmp_path)


def introduce(holds: list[Turn]) -> JoinNode:
    gpus = [GpuReport(index=0, uuid="GPU-other")]
    return JoinNode(
        version=__version__, name="other", home="h_1", gpus=gpus, trainers=["command"], holds=holds
    )


@asynccontextmanager
async def following(port: int, secret: Path) -> AsyncIterator[tuple[Follower, NoParts]]:
    follower = Follower(FirstNode("127.0.0.1", port, tls_context(secret, is_first=False)), introduce)
    parts = NoParts()
    follower.ranks = parts
    task = asyncio.create_task(follower.follow())
    try:
        yield follower, parts
    finally:
        follower.leaving.set()
        await task


@asynccontextmanager
async def hosting(secret: Path) -> AsyncIterator[tuple[NodeHost, int]]:
    port = free_port()
    context = tls_context(secret, is_first=True)
    async with NodeHost(2, ("127.0.0.1", port), context, SlowContent(), "first", OWN) as host:
        host.lease = lambda: WorkerLease(boottime() + LEASE_S, LEASE_S)
        yield host, port


async def test_a_first_node_that_never_greets_is_dialled_anew(
    secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "GREETED_WITHIN_S", 0.5, raising=False)
    dialled: list[NodeConnection[object]] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = NodeConnection(reader, writer, FROM_FOLLOWER)
        dialled.append(line)  # type: ignore[arg-type]
        await line.receive()
        if len(dialled) > 1:  # the first was dying when it took the call
            line.send(Welcome(node=1))

    server = await asyncio.start_server(take, "127.0.0.1", 0, ssl=tls_context(secret, is_first=True))
    try:
        async with following(server.sockets[0].getsockname()[1], secret) as (_, parts):
            await until(lambda: parts.welcomes > 0, 10)
    finally:
        for line in dialled:
            await line.finish()
        server.close()


async def test_a_line_that_brings_nothing_more_is_replaced_before_the_lease_is_over(secret: Path) -> None:
    async with (
        hosting(secret) as (_, port),
        Relay(port).open() as relay,
        following(relay.port, secret) as (follower, parts),
    ):
        await until(lambda: follower.silent_s < LEASE_S / 4 and follower._length_s == LEASE_S, 10)
        relay.freeze()
        longest, began = 0.0, time.monotonic()
        while parts.welcomes < 2 and time.monotonic() < began + 10:
            longest = max(longest, follower.silent_s)
            await asyncio.sleep(0.05)
        assert parts.welcomes == 2
        assert longest < LEASE_S, "its parts would have been ended"


async def test_a_file_that_stops_coming_is_asked_for_again(
    secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "CONTENT_WITHIN_S", 0.5, raising=False)
    async with hosting(secret) as (host, port):
        host._attempts[Turn(OFFER.job_id, OFFER.epoch)] = SpannedAttempt(OFFER, [], "first")
        first = FirstNode("127.0.0.1", port, tls_context(secret, is_first=False))
        pieces: list[bytes] = []

        async def fetch() -> None:
            async with first.fetch_object(OFFER.job_id, "0" * 64, 0) as chunks:
                async for chunk in chunks:
                    pieces.append(chunk)  # noqa: PERF401

        with pytest.raises(Unreachable):
            await asyncio.wait_for(fetch(), 10)
        assert pieces == [b"first"]


async def test_nobody_counts_on_a_node_that_was_silent_for_a_whole_lease(secret: Path) -> None:
    async with hosting(secret) as (host, port):
        with Proxy(port) as proxy:
            async with following(proxy.port, secret) as (follower, _):
                await until(lambda: follower._length_s == LEASE_S, 10)
                assert [sample.healthy for sample in host.samples()] == [True]
                changed = asyncio.Event()
                host.on_change = changed.set
                proxy.drop(TO_SERVER)
                async with asyncio.timeout(3 * LEASE_S):
                    await changed.wait()
                assert [sample.healthy for sample in host.samples()] == [False]
                proxy.heal()
                await until(lambda: [sample.healthy for sample in host.samples()] == [True], 20)


async def test_who_takes_no_more_of_a_file_holds_nobody_up(
    secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was frozen leaves its connections open, and with each a fetch from the orchestrator."""
    monkeypatch.setattr(node_connection, "TAKEN_WITHIN_S", 0.2, raising=False)
    async with hosting(secret) as (host, port):
        host._attempts[Turn(OFFER.job_id, OFFER.epoch)] = SpannedAttempt(OFFER, [], "first")
        source = EndlessContent()
        host._source = source
        line = await dial("127.0.0.1", port, tls_context(secret, is_first=False))
        line.send(FetchContent(kind="data", job_id=OFFER.job_id, sha256="0" * 64, offset=0))
        async with asyncio.timeout(20):
            await source.left.wait()
        line.cut()
