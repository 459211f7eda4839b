"""Rounds of inputs: a fresh server, some hundreds of inputs, and a look at everything afterwards."""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from devtools.fuzz.cast import Cast
from devtools.fuzz.chance import Chance
from devtools.fuzz.document import NearSchema, operations_of
from devtools.fuzz.in_process_server import InProcessServer
from devtools.fuzz.judge import (
    Defect,
    LogWatch,
    Tally,
    pass_time,
    server_problems,
    still_serves,
    wrong_with,
    wrong_with_bytes,
)
from devtools.fuzz.line import AnswerReader, Line, LineAnswer, Unanswered
from devtools.fuzz.requests import Requests, Sent
from devtools.fuzz.scim import scim_settings
from simpletuner_fleet.http.edge.scim_problems import CONTENT_TYPE as SCIM_TYPE
from simpletuner_fleet.http.server.connection import BUSY, HttpConnection
from simpletuner_fleet.web import routes as web_routes

MEND_EVERY = 200
SOCKET_ONE_IN = 20
QUIET_S = 0.25
"""What is answered without end, as a log that is followed, is left after so long without a word."""
LONG_AFTER_S = 4000.0
FAST_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where syncing a file costs nothing: the power does not fail here."""


class Round(Struct):
    """One server from its beginning to its end, by one seed."""

    seed: int
    inputs: int
    tally: Tally
    log: LogWatch
    defects: list[Defect]
    only: str = ""
    """The one kind of input that is sent; empty: all."""
    number: int = 0

    async def run(self) -> None:
        chance = Chance(self.seed)
        async with a_server(self.seed) as server:
            cast = await Cast(server, chance).arrive()
            document = json.loads((await server.ask("GET", "/openapi.json")).body)
            near = NearSchema(document, server.known, chance)
            pages = [row for row in web_routes.ROUTES if not row.path.startswith("/assets/")]
            requests = Requests(near, operations_of(document), pages, cast.callers, chance, self.only)
            door = await asyncio.get_running_loop().create_server(
                lambda: HttpConnection(server.http_server), "127.0.0.1", 0
            )
            port = door.sockets[0].getsockname()[1]
            for number in range(self.inputs):
                self.number = number
                if number % MEND_EVERY == MEND_EVERY - 1:
                    await cast.mend()
                server.clock.at += 0.01
                await self._send(server, requests.next(), chance, port)
            door.close()
            await self._look_at_all(server)
        self.tally.servers += 1

    async def _send(self, server: InProcessServer, sent: Sent, chance: Chance, port: int) -> None:
        self.tally.inputs[sent.kind] += 1
        pieces = chance.cut(sent.raw)
        wrong: str | None
        try:
            if not sent.whole:
                wrong = wrong_with_bytes(await self._spoiled(server, pieces))
            else:
                if chance.happens(SOCKET_ONE_IN):
                    self.tally.over_sockets += 1
                    answer = await over_socket(port, sent, pieces)
                else:
                    line = Line(server.http_server)
                    await line.send(pieces)
                    answer = await line.answer(sent.method, endless=sent.endless)
                self._learn(server, answer)
                self.tally.note(sent, answer.status)
                wrong = wrong_with(sent, answer)
        except Unanswered as error:
            wrong = f"was not answered: {error}"
        for what in ([wrong] if wrong else []) + self.log.take():
            self.defects.append(Defect(sent.kind, f"{sent.name}: {what}", self.number, self.seed, sent.raw))

    async def _spoiled(self, server: InProcessServer, pieces: list[bytes]) -> bytes:
        """Sends what is owed no answer, and takes what is answered until nothing more comes."""
        line = Line(server.http_server)
        await line.send(pieces)
        while line.state == BUSY and not line.transport.closed and not line.wants_more:
            line.transport.news.clear()
            try:
                async with asyncio.timeout(QUIET_S):
                    await line.transport.news.wait()
            except TimeoutError:
                break
        line.hang_up()
        await asyncio.sleep(0)
        self.tally.statuses["no request"] += 1
        return bytes(line.transport.written)

    def _learn(self, server: InProcessServer, answer: LineAnswer) -> None:
        """Remembers ids of what was made, so that later inputs meet it."""
        if answer.headers.get("content-type") == SCIM_TYPE:
            self._learn_scim(server, answer)
        elif answer.status in (200, 201) and b'_id":"' in answer.body[:300]:
            for kind, key in (
                ("job", b'"job_id":"'),
                ("worker", b'"worker_id":"'),
                ("manifest", b'"manifest_id":"'),
            ):
                rest = answer.body.partition(key)[2]
                if rest:
                    server.known[kind] = [*server.known[kind][-40:], rest.partition(b'"')[0].decode()]

    def _learn_scim(self, server: InProcessServer, answer: LineAnswer) -> None:
        for kind, at in (("scim_user", b"/scim/v2/Users/"), ("scim_group", b"/scim/v2/Groups/")):
            for rest in answer.body.split(at)[1:9]:
                server.known[kind] = [*server.known[kind][-40:], rest.partition(b'"')[0].decode()]

    async def _look_at_all(self, server: InProcessServer) -> None:
        problems = await server_problems(server)
        await pass_time(server, LONG_AFTER_S, 20)
        problems += await server_problems(server) + await still_serves(server)
        lines = [("log", line) for line in self.log.take()]
        self.defects += [
            Defect("afterwards", f"{promise}: {what}", self.inputs, self.seed)
            for promise, what in problems + lines
        ]


@asynccontextmanager
async def a_server(seed: int) -> AsyncIterator[InProcessServer]:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=FAST_FOLDER) as folder:
        server = await InProcessServer(Path(folder) / "server", seed, sign_in=scim_settings()).open()
        try:
            yield server
        finally:
            await server.close()


async def over_socket(port: int, sent: Sent, pieces: list[bytes]) -> LineAnswer:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer_reader = AnswerReader(sent.method, endless=sent.endless)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(20):
            while True:
                data = await reader.read(65536)
                answer = answer_reader.feed(data, closed=not data)
                if answer is not None:
                    return answer
    except (TimeoutError, ConnectionError) as error:
        raise Unanswered(f"over a socket: {error!r}") from error
    finally:
        writer.transport.abort()
