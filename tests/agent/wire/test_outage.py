"""What is learnt of the way to the orchestrator, over real connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from devtools.ports import free_port
from simpletuner_fleet.agent.wire.outage import Door, Outage, knock
from simpletuner_fleet.core.workers.outage import Knock
from simpletuner_fleet.protocol.messages import Registered
from simpletuner_fleet.protocol.paths import ends_of, server_of


@asynccontextmanager
async def listening(seen: list[str]) -> AsyncIterator[int]:
    """Notes the ends of each connection as its server sees them."""

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(ends_of(writer.transport, client=False))
        writer.close()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def registered(ends: str, *addresses: str) -> Registered:
    return Registered(
        worker_id="w",
        name="w",
        status="idle",
        heartbeat_interval_s=1,
        heartbeat_timeout_s=5,
        stream_url="/",
        ends=ends,
        addresses=list(addresses),
    )


async def test_both_ends_of_one_connection_write_the_same() -> None:
    seen: list[str] = []
    async with listening(seen) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.read()
        mine = ends_of(writer.transport, client=True)
        writer.close()
    assert seen == [mine]
    assert server_of(mine) == ("127.0.0.1", port)


async def test_a_refusal_at_the_socket_that_was_reached_directly_is_certain() -> None:
    outage, port = Outage(), free_port()
    ends = f"127.0.0.1|50000 127.0.0.1|{port}"
    outage.learn(ends, registered(ends))
    assert await outage.is_certain(0.0)
    outage.learn(ends, registered(f"127.0.0.1|50001 127.0.0.1|{port}"))
    assert not await outage.is_certain(0.0), (
        "another port of the caller: a forwarder, on another machine perhaps"
    )


async def test_it_is_not_certain_while_another_address_of_the_orchestrator_is_open() -> None:
    outage, port = Outage(), free_port()
    ends = f"127.0.0.1|50000 127.0.0.1|{port}"
    async with listening([]) as open_port:
        outage.learn(ends, registered(ends, f"http://127.0.0.1:{open_port}"))
        assert not await outage.is_certain(0.0)
    assert await outage.is_certain(0.0)


async def test_an_answer_without_ends_as_of_an_older_orchestrator_proves_nothing() -> None:
    outage = Outage()
    outage.learn(f"127.0.0.1|50000 127.0.0.1|{free_port()}", registered("", "not a url", "http://[::1"))
    assert not await outage.is_certain(0.0)


async def test_knocking() -> None:
    seen: list[str] = []
    async with listening(seen) as port:
        assert await knock(Door("127.0.0.1", port)) is Knock.OPEN
    assert await knock(Door("127.0.0.1", free_port())) is Knock.REFUSED
    assert await knock(Door("nowhere.invalid", 80)) is Knock.SILENT
