"""The agent's calls, answered by anybody: each ends in an answer that was understood, or in a trouble that has a name."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from devtools.fuzz.agent.lying_server import answer
from devtools.fuzz.chance import Chance
from devtools.fuzz.document import Known, NearSchema
from devtools.fuzz.judge import Defect, Tally
from simpletuner_fleet.agent.ship.logs.output_log import Chunk
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.errors import Refused, Unreachable
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.protocol import messages, uploads
from simpletuner_fleet.protocol.metrics import MetricsAnswer
from simpletuner_fleet.protocol.problems import KNOWN_CODES, TYPE_PREFIX

TOKEN = tokens.make("wt", b"w" * 32)
KIND = "agent call"
STATUSES = (
    100,
    200,
    201,
    204,
    206,
    301,
    302,
    304,
    307,
    400,
    401,
    403,
    404,
    405,
    409,
    410,
    413,
    422,
    429,
    500,
    502,
    503,
)
MANIFEST = uploads.Manifest(kind="artifact", name="output", step=None, files=())
ANSWERS: dict[str, Any] = {
    "register": messages.Registered,
    "heartbeat": messages.HeartbeatAnswer,
    "accept": messages.Accepted,
    "report": messages.ReportAnswer,
    "send_log": messages.LogAnswer,
    "send_metrics": MetricsAnswer,
    "missing_objects": uploads.ObjectsAnswer,
    "ask_direct": uploads.DirectAnswer,
    "end_direct": uploads.DirectAnswer,
    "send_manifest": uploads.ManifestAnswer,
    "send_notes": uploads.NotesAnswer,
    "fetch": None,
    "stream": None,
    "ask": None,
}


class AgentCalls:
    """One real client, and a server that says what it is told to."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        _, schemas = msgspec.json.schema_components(
            [kind for kind in ANSWERS.values() if kind], ref_template="#/components/schemas/{name}"
        )
        known: Known = {"job": ["j_1"], "epoch": [1, 7], "worker": ["w_1"], "sha256": ["0" * 64]}
        self._near = NearSchema({"components": {"schemas": schemas}}, known, chance)
        self._next = b""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[OrchestratorClient]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = OrchestratorClient(url, lambda: TOKEN, None)
        client.answer_timeout_s = 1.0
        try:
            yield client
        finally:
            await client.close()
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1 << 20)
            for piece in self._chance.cut(self._next):
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def one(self, client: OrchestratorClient) -> str | None:
        """Makes one call; returns what is wrong with how it ended."""
        name = self._chance.choice(list(ANSWERS))
        self._next = self._answer_to(name)
        try:
            async with asyncio.timeout(15):
                await CALLS[name](client)
        except (Unreachable, Refused):
            return None
        except TimeoutError:
            return f"{name} did not end"
        except Exception as error:  # that is the defect which is looked for
            return f"{name} raised {error!r}"
        return None

    @property
    def said(self) -> bytes:
        return self._next

    def _answer_to(self, name: str) -> bytes:
        chance = self._chance
        status, headers = 200, [b"X-A: b"]
        kind = ANSWERS[name]
        match chance.randrange(6):
            case 0 | 1 | 2 if kind:
                self._near.sane = chance.happens(3)
                body = chance.encoded(self._near.value({"$ref": f"#/components/schemas/{kind.__name__}"}))
            case 3:
                status = chance.choice(STATUSES)
                code = chance.choice(sorted(KNOWN_CODES)) if not chance.happens(4) else chance.text()
                problem = {
                    "type": TYPE_PREFIX + code,
                    "status": status,
                    "code": code,
                    "detail": chance.garbage(),
                }
                body = chance.encoded(problem)
            case 4:
                status = chance.choice(STATUSES)
                body = b"<html>proxy log-in</html>"
                headers = [
                    chance.choice(
                        (b"Location: http://127.0.0.1:1/", b"Content-Encoding: gzip", b"Retry-After: -5")
                    )
                ]
            case _:
                body = b"".join(
                    chance.choice((b"data: {}\n\n", b"event: x\n", chance.randbytes(30))) for _ in range(9)
                )
        raw = answer(status, body, *headers)
        return chance.mangled(raw) if chance.happens(4) else raw


async def _fetch(client: OrchestratorClient) -> None:
    async with client.fetch_object("j_1", "0" * 64, 0) as chunks:
        async for _ in chunks:
            pass


async def _stream(client: OrchestratorClient) -> None:
    async with client.stream("/api/workers/stream?worker_id=w_1", "", lambda: 1.0) as events:
        async for _ in events:
            pass


CALLS: dict[str, Callable[[OrchestratorClient], Any]] = {
    "register": lambda client: client.register(messages.Register(name="w")),
    "heartbeat": lambda client: client.heartbeat(messages.Heartbeat()),
    "accept": lambda client: client.accept("j_1", messages.Accept(epoch=1)),
    "report": lambda client: client.report(
        "j_1", messages.StatusReport(status=messages.ReportStatus.RUNNING, epoch=1)
    ),
    "send_log": lambda client: client.send_log("j_1", 1, Chunk(offset=0, data=b"x", gap=0, times=())),
    "send_metrics": lambda client: client.send_metrics("j_1", 1, 0, ()),
    "missing_objects": lambda client: client.missing_objects("j_1", 1, ()),
    "ask_direct": lambda client: client.ask_direct(Turn("j_1", 1), "0" * 64, 1),
    "end_direct": lambda client: client.end_direct(Turn("j_1", 1), "0" * 64, 1),
    "send_manifest": lambda client: client.send_manifest("j_1", 1, MANIFEST),
    "send_notes": lambda client: client.send_notes("j_1", 1, ()),
    "fetch": _fetch,
    "stream": _stream,
    "ask": lambda client: client.ask(),
}


async def fuzz_calls(seed: int, inputs: int, tally: Tally) -> list[Defect]:
    calls = AgentCalls(Chance(seed))
    defects = []
    async with calls.opened() as client:
        for number in range(inputs):
            tally.inputs[KIND] += 1
            wrong = await calls.one(client)
            if wrong:
                defects.append(Defect(KIND, wrong, number, seed, calls.said))
    return defects
