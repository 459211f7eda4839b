"""Requests to a provider of sign-in, or to a directory."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from simpletuner_fleet.core.errors import ProviderUnusable
from simpletuner_fleet.core.people.sign_in.directories import Directory
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.orchestrator.sign_in.asking import Asker
from simpletuner_fleet.orchestrator.sign_in.directory import MOST_AT_ONCE, AskedDirectory

NO_NAMES = pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".com"])


@NO_NAMES
async def test_a_provider_whose_host_is_no_name_is_unusable(host: str) -> None:
    outbound = OutboundConnector()
    for asker in (Asker(), Asker(outbound=outbound)):
        with pytest.raises(ProviderUnusable):
            await asker.ask(f"https://{host}/")
        await asker.close()
    outbound.close()


@NO_NAMES
async def test_a_directory_whose_host_is_no_name_is_unusable(host: str) -> None:
    settings = Directory(id="d", title="D", host=host, port=636, tls_from_the_start=True, base="dc=example")
    with pytest.raises(ProviderUnusable, match="cannot be reached"):
        await AskedDirectory(settings).person("anna", "a password")


@contextmanager
def silent_server() -> Iterator[int]:
    """Takes connections, and never says anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening.getsockname()[1]


def directory_at(port: int) -> Directory:
    return Directory(
        id="d",
        title="D",
        host="127.0.0.1",
        port=port,
        tls_from_the_start=False,
        plain=True,
        bind_dn="cn=looks",
        bind_password="up",
        base="dc=example",
    )


async def test_a_directory_that_hangs_holds_up_no_other_work_of_the_server() -> None:
    with ThreadPoolExecutor(2) as few, silent_server() as port:
        asyncio.get_running_loop().set_default_executor(few)
        directory = AskedDirectory(directory_at(port), deadline_s=4.0)
        asked = [asyncio.create_task(directory.person("anna", "x")) for _ in range(MOST_AT_ONCE)]
        await asyncio.sleep(0)  # so that all of them ask
        async with asyncio.timeout(3.0):
            assert await asyncio.to_thread(lambda: "done") == "done"
        assert not any(task.done() for task in asked)
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(one, ProviderUnusable) for one in outcomes)


@pytest.mark.parametrize(
    "garbled", [b"\x30\x00", b"\x30\x01\x02", b"\x30\x03\x02\x01\x01", b"\x30\x02\x02\x84"]
)
async def test_a_directory_whose_answer_breaks_off_inside_is_unusable(garbled: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(garbled)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ProviderUnusable, match="cannot be read"):
            await AskedDirectory(directory_at(port), deadline_s=5.0).person("anna", "x")
