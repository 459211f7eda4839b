"""What a worker says of its connection."""

import logging

import pytest

from simpletuner_fleet.agent.loops.greeting import Greeting, span_text
from simpletuner_fleet.agent.program import WorkerSettings, jobs_at_once
from simpletuner_fleet.protocol.messages import Registered

URL = "https://10.0.0.5:8001"


class Ticks:
    at = 0.0

    def __call__(self) -> float:
        return self.at


def answer(name: str = "gpu-1", worker_type: str = "") -> Registered:
    return Registered(
        worker_id="w_1",
        name=name,
        status="idle",
        heartbeat_interval_s=30,
        heartbeat_timeout_s=120,
        stream_url="/s",
        worker_type=worker_type,
    )


def test_it_says_connected_once_and_connected_again_after_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    clock = Ticks()
    greeting = Greeting("gpu-1", clock)
    with caplog.at_level(logging.INFO):
        greeting.line_is_lost()
        greeting.say(answer(), URL, persistent=True)
        greeting.say(answer(), URL, persistent=True)
        clock.at = 10.0
        greeting.line_is_lost()
        clock.at = 52.0
        greeting.line_is_lost()
        greeting.say(answer(), URL, persistent=True)
    assert [record.getMessage() for record in caplog.records] == [
        f"connected to {URL} as 'gpu-1'; waiting for jobs",
        f"connected again to {URL} after 42 s",
    ]


def test_a_name_and_a_type_that_do_not_count_are_told(caplog: pytest.LogCaptureFixture) -> None:
    Greeting("other").say(answer(worker_type="persistent"), URL, persistent=False)
    assert "it is known by that name, and not as 'other'" in caplog.text
    assert "start it with --persistent" in caplog.text


def test_a_name_from_a_lying_server_begins_no_line(caplog: pytest.LogCaptureFixture) -> None:
    Greeting("gpu-1").say(answer(name="x\nerror: all is lost"), URL, persistent=True)
    assert not any(line.startswith("error: all") for line in caplog.text.splitlines())


@pytest.mark.parametrize(("seconds", "text"), [(3.2, "3 s"), (300.0, "5 min"), (9000.0, "2 h 30 min")])
def test_spans(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


@pytest.mark.parametrize(
    ("persistent", "asked", "gpus", "jobs"),
    [(True, None, 8, 8), (True, None, 0, 1), (False, None, 8, 1), (True, 1, 8, 1), (False, 3, 8, 3)],
)
def test_a_worker_takes_as_many_jobs_as_its_gpus_allow(
    persistent: bool, asked: int | None, gpus: int, jobs: int
) -> None:
    settings = WorkerSettings(
        url=URL, token="t", token_file=None, name="a", persistent=persistent, max_jobs=asked
    )
    assert jobs_at_once(settings, gpus) == jobs
