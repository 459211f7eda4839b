"""Waiting for a job that does not end in time, on a clock that is handed in."""

import httpx2
import msgspec
import pytest

from simpletuner_fleet.client.calls.call import OpenStream, Read, Received, Send, Sleep, Steps
from simpletuner_fleet.client.calls.caller import LEAST_S, RouteCaller
from simpletuner_fleet.client.calls.waiting import wait
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.client.errors import UnreachableError, WaitTimeout
from simpletuner_fleet.client.table.job_answers import WholeJobView
from simpletuner_fleet.client.trust import Choices
from tests.client.test_fleet import fleet_at
from tests.http.api_kit import CPU_CONFIG, orchestrator

PING_EVERY_S = 15.0


class PingingServer:
    """Takes the steps of one wait: its job never ends, and its stream tells of nothing but that it is there."""

    def __init__(self, job: bytes) -> None:
        self.now = 0.0
        self._job, self._silent_s, self._next_ping = job, 0.0, 0.0

    def clock(self) -> float:
        return self.now

    def take(self, steps: Steps[WholeJobView]) -> None:
        result: object = None
        error: httpx2.ReadTimeout | None = None
        while True:
            step = steps.throw(error) if error else steps.send(result)
            result = error = None
            match step:
                case OpenStream():
                    self._silent_s = step.read_timeout_s or 0.0
                    self._next_ping = self.now + PING_EVERY_S
                    result = Received(200, {"content-type": "text/event-stream"}, b"")
                case Send():
                    result = self.answer(step)
                    error = httpx2.ReadTimeout("no answer") if result is None else None
                case Sleep():
                    self.now += step.seconds
                case Read() if self._next_ping - self.now <= self._silent_s:
                    self.now = self._next_ping
                    self._next_ping += PING_EVERY_S
                    result = b"event: ping\ndata: {}\n\n"
                case _:
                    self.now += self._silent_s
                    error = httpx2.ReadTimeout("silent")

    def answer(self, step: Send) -> Received | None:
        return Received(200, {"content-type": "application/json"}, self._job)


@pytest.fixture
async def queued_job() -> bytes:
    async with orchestrator() as running, fleet_at(running) as fleet:
        return msgspec.json.encode(await fleet.job(await fleet.submit(CPU_CONFIG)))


async def test_waiting_is_over_when_its_time_is_whatever_comes_on_the_stream(queued_job: bytes) -> None:
    for timeout_s in (0.5, 5.0, 16.0, 17.0, 29.0, 31.0, 44.0, 100.0):
        server = PingingServer(queued_job)
        where = ConnectionSettings("http://127.0.0.1", "", None, "", Choices(), "", [])
        caller = RouteCaller(where, monotonic=server.clock)
        with pytest.raises(WaitTimeout):
            server.take(wait(caller, "j_1", timeout_s, check=True))
        assert timeout_s <= server.now <= timeout_s + LEAST_S


class HangingServer(PingingServer):
    """Answers the first looks, and no more after that."""

    def __init__(self, job: bytes, answers: int) -> None:
        super().__init__(job)
        self._answers = answers

    def answer(self, step: Send) -> Received | None:
        self._answers -= 1
        if self._answers >= 0:
            return super().answer(step)
        self.now += step.timeout_s
        return None


@pytest.mark.parametrize("answers", [0, 1, 2])
async def test_waiting_is_over_when_its_time_is_though_no_answer_comes(
    queued_job: bytes, answers: int
) -> None:
    for timeout_s in (0.5, 5.0, 17.0, 44.0, 100.0):
        server = HangingServer(queued_job, answers)
        where = ConnectionSettings("http://127.0.0.1", "", None, "", Choices(), "", [])
        caller = RouteCaller(where, monotonic=server.clock)
        with pytest.raises((WaitTimeout, UnreachableError)):
            server.take(wait(caller, "j_1", timeout_s, check=True))
        assert server.now <= timeout_s + 2 * LEAST_S
