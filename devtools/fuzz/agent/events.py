"""What a hostile orchestrator says on the stream and answers to heartbeats, while the agent has a job to look after."""

import tempfile
from pathlib import Path

import msgspec

from devtools.fuzz.agent.lying_server import GOOD_TIMES, answer
from devtools.fuzz.agent.stage import event, stage
from devtools.fuzz.chance import Chance
from devtools.fuzz.document import Known, NearSchema
from devtools.fuzz.judge import Defect, LogWatch, Tally
from simpletuner_fleet.protocol import messages

KIND = "agent event"
NAMES = (
    "job_submit",
    "job_cancel",
    "drain",
    "shutdown",
    "token_rotated",
    "ping",
    "audit_head",
    "",
    "x" * 300,
)
ORDERS = {"drain": messages.Drain, "shutdown": messages.Shutdown, "job_submit": messages.JobSubmit}
"""What is obeyed where it is understood: these are sent only where it is not."""
MESSAGES = {**ORDERS, "job_cancel": messages.JobCancel}
BREATH = 50


class HostileWords:
    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        _, schemas = msgspec.json.schema_components(
            [*MESSAGES.values(), messages.HeartbeatAnswer], ref_template="#/components/schemas/{name}"
        )
        known: Known = {"job": ["j_1", "j_2"], "epoch": [1, 7, 8], "worker": ["w_1"], "attempt": ["a_1"]}
        self._near = NearSchema({"components": {"schemas": schemas}}, known, chance)

    def event(self) -> bytes:
        chance = self._chance
        name = chance.choice(NAMES)
        data = self._data(name)
        kind = ORDERS.get(name)
        if kind and understood(data, kind):
            data = b"\xff" + data
        raw = event(name.encode(), data.replace(b"\n", b" "))
        return chance.mangled(raw) if chance.happens(15) else raw

    def _data(self, name: str) -> bytes:
        chance = self._chance
        if name in MESSAGES and not chance.happens(3):
            return chance.encoded(
                self._near.value({"$ref": f"#/components/schemas/{MESSAGES[name].__name__}"})
            )
        return chance.encoded(chance.garbage())

    def heartbeat_answer(self) -> bytes:
        """Anything but an order that would be obeyed."""
        chance = self._chance
        value = self._near.value({"$ref": "#/components/schemas/HeartbeatAnswer"})
        if isinstance(value, dict):
            value = {**value, "jobs": [], "stop": [], "drain": False, "shutdown": False, **GOOD_TIMES}
        return answer(chance.choice((200, 200, 204, 302, 404, 500)), chance.encoded(value))


def understood(data: bytes, kind: type) -> bool:
    try:
        msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


async def fuzz_events(seed: int, inputs: int, tally: Tally, log: LogWatch) -> list[Defect]:
    """One agent hears all of them; afterwards its trainer goes on, and the job ends well."""
    words, heard = HostileWords(Chance(seed)), b""
    with tempfile.TemporaryDirectory(prefix="fuzz-agent-") as folder:
        try:
            async with stage(Path(folder)) as on_stage:
                for number in range(inputs):
                    tally.inputs[KIND] += 1
                    heard = words.event()
                    await on_stage.server.say(heard)
                    if number % BREATH == 0:
                        on_stage.server.lies.append(words.heartbeat_answer())
                await on_stage.server.say(b"\n\n" + event(b"ping", b"{}"))
                on_stage.server.lies.clear()
                await on_stage.goes_on()
                await on_stage.ends_well()
        except (AssertionError, TimeoutError) as error:
            return [Defect(KIND, repr(error), inputs, seed, heard)]
    return [Defect(KIND, line, inputs, seed, heard) for line in log.take()]
