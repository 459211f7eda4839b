"""What a worker that cannot get through says, and how often."""

import logging

import pytest

from simpletuner_fleet.agent.loops.complaint import SAY_AGAIN_S, Complaint
from simpletuner_fleet.agent.wire.errors import Refused, Unreachable, problem_of

URL = "https://10.0.0.5:8001"
PROBLEM = b"""{"type": "urn:simpletuner:problem:network_not_allowed", "status": 403, "code": "network_not_allowed",
 "title": "t", "detail": "Workers may not connect from 10.1.2.3.", "next": "Ask the administrator."}"""


class Ticks:
    at = 0.0

    def __call__(self) -> float:
        return self.at


def test_the_same_refusal_is_said_once_a_minute_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    clock = Ticks()
    complaint = Complaint(clock)
    problem = problem_of(403, PROBLEM)
    assert isinstance(problem, Refused)
    for _ in range(8):
        complaint.refused(problem)
        clock.at += 2.0
    said = "the orchestrator refused: Workers may not connect from 10.1.2.3. Ask the administrator."
    assert caplog.messages == [said]
    clock.at += SAY_AGAIN_S
    complaint.refused(problem)
    assert caplog.messages == [said, said]
    complaint.refused(Refused(403, "forbidden", "This is something else."))
    assert caplog.messages[-1] == "the orchestrator refused: This is something else."


def test_an_outage_is_told_once_until_the_connection_was_back(caplog: pytest.LogCaptureFixture) -> None:
    complaint = Complaint(Ticks())
    error = Unreachable(ConnectionRefusedError(111, "x"), refused=True)
    with caplog.at_level(logging.ERROR):
        complaint.unreachable(error, URL, answered_before=False)
        complaint.unreachable(Unreachable(TimeoutError(), refused=False), URL, answered_before=False)
        assert len(caplog.messages) == 1
        complaint.clear()
        complaint.unreachable(error, URL, answered_before=False)
    assert len(caplog.messages) == 2
