"""The line between nodes: only who has the machine's secret is heard, and nothing that cannot be meant is taken in."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from devtools.ports import free_port
from simpletuner_fleet import __version__
from simpletuner_fleet.agent.nodes.host import NodeHost
from simpletuner_fleet.agent.nodes.messages import (
    Beat,
    ContentEnd,
    FetchContent,
    JoinNode,
    LeaseLeft,
    NotWelcome,
    Welcome,
)
from simpletuner_fleet.agent.nodes.node_connection import ConnectionLost, dial, kept_secret, tls_context
from simpletuner_fleet.core.worker_errors import NodeSecretError
from simpletuner_fleet.core.workers.worker import Gpu
from simpletuner_fleet.protocol.messages import GpuReport
from simpletuner_fleet.providers.node_secret import new_node_secret

OWN = (Gpu(index=0, uuid="GPU-own"),)


class NoContent:
    def fetch_object(
        self, job_id: str, sha256: str, offset: int
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise AssertionError("nobody may ask for this")

    fetch_data = fetch_object


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return kept_secret(new_node_secret(), None, tmp_path)


@asynccontextmanager
async def listening(secret: Path) -> AsyncIterator[tuple[NodeHost, int]]:
    port = free_port()
    context = tls_context(secret, is_first=True)
    async with NodeHost(2, ("127.0.0.1", port), context, NoContent(), "first", OWN) as host:
        yield host, port


def joining(uuid: str = "GPU-other", home: str = "h_1", version: str = __version__) -> JoinNode:
    return JoinNode(
        version=version, name="other", home=home, gpus=[GpuReport(index=0, uuid=uuid)], trainers=["command"]
    )


async def test_a_node_with_the_secret_is_taken_in_and_told_how_long_it_may_go_on(secret: Path) -> None:
    async with listening(secret) as (host, port):
        line = await dial("127.0.0.1", port, tls_context(secret, is_first=False))
        line.send(joining())
        assert await line.receive() == Welcome(node=1)
        line.send(Beat(sent=12.5))
        answer = await line.receive()
        assert isinstance(answer, LeaseLeft)
        assert answer.sent == 12.5
        (member,) = await host.gathered()
        assert [(gpu.uuid, gpu.node) for gpu in member.gpus] == [("GPU-other", 1)]
        assert [sample.healthy for sample in host.samples()] == [True]
        line.send(FetchContent(kind="data", job_id="j_1", sha256="0" * 64, offset=0))
        gone = asyncio.Event()
        host.on_change = gone.set
        line.close()
        async with asyncio.timeout(30):
            await gone.wait()
        assert [sample.healthy for sample in host.samples()] == [False], "its GPUs are nobody's now"


async def test_who_has_another_secret_is_neither_heard_nor_listened_to(secret: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = kept_secret(new_node_secret(), None, tmp_path / "other")
    async with listening(secret) as (host, port):
        with pytest.raises(ConnectionLost):
            await dial("127.0.0.1", port, tls_context(other, is_first=False))
        # One that believes everybody is not believed.
        careless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
        line = await dial("127.0.0.1", port, careless)
        line.send(joining())
        with pytest.raises(ConnectionLost):
            await line.receive()
        await line.finish()
        assert host.samples() == []


@pytest.mark.parametrize(
    ("join", "why"),
    [
        (joining(version="0.0.0"), "version"),
        (joining(uuid="GPU-own"), "GPU-own"),
        (JoinNode(version=__version__, name="n", home="h_1", gpus=[], trainers=[]), "0 GPUs"),
    ],
)
async def test_a_node_that_does_not_belong_here_is_told_why(secret: Path, join: JoinNode, why: str) -> None:
    async with listening(secret) as (_, port):
        line = await dial("127.0.0.1", port, tls_context(secret, is_first=False))
        line.send(join)
        answer = await line.receive()
        assert isinstance(answer, NotWelcome)
        assert why in answer.reason
        line.close()


async def test_no_node_is_given_what_is_of_no_attempt_of_this_worker(secret: Path) -> None:
    async with listening(secret) as (_, port):
        line = await dial("127.0.0.1", port, tls_context(secret, is_first=False))
        line.send(FetchContent(kind="object", job_id="j_9", sha256="0" * 64, offset=0))
        assert await line.receive() == ContentEnd(
            trouble="no attempt of this job is under way", passing=False
        )
        line.close()


def test_a_secret_that_is_none_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(NodeSecretError):
        kept_secret(None, None, tmp_path)
    with pytest.raises(NodeSecretError):
        tls_context(kept_secret("no key", None, tmp_path), is_first=True)
    assert (tmp_path / "node_secret.pem").stat().st_mode & 0o777 == 0o600
