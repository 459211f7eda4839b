"""How the server finds other machines: a cloud whose name nobody resolves must not keep it from finding the others."""

import asyncio
import socket
import threading
from collections import Counter

import httpx2
import pytest

from simpletuner_fleet.cli.programs.server_loop import ServerLoop
from simpletuner_fleet.providers.vendor_http import vendor_client
from tests.delivery.receivers import until

DEAD = [f"dead{number}.example.org" for number in range(20)]


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    writer.close()


def test_names_that_nobody_resolves_hold_up_neither_other_names_nor_the_threads_of_the_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, asked, real = threading.Event(), Counter[str](), socket.getaddrinfo

    def slow(given: bytes, *more: object, **named: object) -> object:
        host = given.decode()
        asked[host] += 1
        if host in DEAD:
            over.wait(20)
            raise socket.gaierror("nobody answers")
        return real("127.0.0.1", *more, **named)  # type: ignore[arg-type]

    async def calls() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with vendor_client(30.0) as http:
            stuck = [asyncio.create_task(http.get(f"http://{name}:{port}/")) for name in (*DEAD, *DEAD)]
            async with asyncio.timeout(10):
                await until(lambda: len(asked) == len(DEAD))
                answer = await http.get(f"http://lives.example.org:{port}/")
                await asyncio.to_thread(lambda: None)
            assert answer.status_code == 200
            assert set(asked.values()) == {1}
            over.set()
            ends = await asyncio.gather(*stuck, return_exceptions=True)
        server.close()
        assert {type(end) for end in ends} == {httpx2.ConnectError}, ends

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with asyncio.Runner(loop_factory=ServerLoop) as runner:
        try:
            runner.run(calls())
        finally:
            over.set()
