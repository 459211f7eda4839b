"""The workers that make the life cycles of a benchmark speak as the real agent does."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from bench.load.generator import NOOP, NOOP_CONFIG, SUBMIT_NOOP, connected_workers, create_accounts
from bench.load.orders import RunJobs, SendHeartbeats
from bench.programs import Server, running_agents, running_server, scratch, wait_until
from simpletuner_fleet.core.workers.job_groups import HAD, LACKS, MEMORY, PIDS
from tests.bench.load.recording_proxy import Request, recording

Seen = Callable[[str], bool]
"""Whether a request of this line has passed."""
HEARTBEAT = "POST /api/workers/heartbeat HTTP/1.1"
LIFE_CYCLE = [
    "POST /api/workers/register HTTP/1.1",
    "POST /api/workers/job/…/accept HTTP/1.1",
    "POST /api/workers/job/…/status HTTP/1.1",
    "POST /api/workers/job/…/status HTTP/1.1",
]
STREAM = "GET /api/workers/stream?worker_id=…&incarnation=… HTTP/1.1"


def requests_of(drive: Callable[[Server, Seen], None]) -> list[Request]:
    """What passes between a fresh server and the workers that `drive` runs against it, in the order of each line."""
    with (
        scratch() as folder,
        running_server(
            folder, SIMPLETUNER_HEARTBEAT_INTERVAL="0.5", SIMPLETUNER_HEARTBEAT_TIMEOUT="20"
        ) as server,
        recording(int(urlsplit(server.url).port or 0)) as proxy,
    ):

        def seen(line: str) -> bool:
            return bool(of_line(proxy.requests(), line))

        drive(Server(server.process, f"http://127.0.0.1:{proxy.port}", server.admin_token), seen)
        return [request for request in proxy.requests() if " /api/workers/" in request.line]


def drive_real_agent(server: Server, seen: Seen) -> None:
    with scratch() as folder, running_agents(server, folder):
        server.put_config(NOOP, NOOP_CONFIG)
        job = server.post("/api/queue/submit", SUBMIT_NOOP)["job_id"]
        wait_until(lambda: server.get(f"/api/jobs/{job}")["status"] == "completed", "the job completes")
        wait_until(lambda: seen(HEARTBEAT), "a heartbeat comes")


def drive_protocol_worker(server: Server, _: Seen) -> None:
    with connected_workers(server, create_accounts(server, 1)) as (generator,):
        generator.carry_out(RunJobs(1, 1))
        generator.carry_out(
            SendHeartbeats(0.01)
        )  # in ten times as long a fast machine sends more than one may


@pytest.mark.e2e
def test_a_protocol_worker_sends_what_the_real_agent_sends() -> None:
    real, ours = requests_of(drive_real_agent), requests_of(drive_protocol_worker)
    for line in (*LIFE_CYCLE, STREAM, HEARTBEAT):
        assert of_line(ours, line)[0].headers == of_line(real, line)[0].headers, line
    for line in (*LIFE_CYCLE, HEARTBEAT):
        assert bodies(ours, line) == bodies(real, line), line
    assert in_order(ours) == in_order(real) == LIFE_CYCLE


def of_line(requests: list[Request], line: str) -> list[Request]:
    return [request for request in requests if request.line == line]


def bodies(requests: list[Request], line: str) -> list[Any]:
    """A worker's first report of `running` tells of no step yet; ours does, which costs the server more, not less.

    Which labels tell of control groups is the machine's affair.
    """
    shapes = [request.body for request in of_line(requests, line)]
    for shape in shapes:
        shape.pop("progress", None)
        for name in (HAD, LACKS, MEMORY, PIDS):
            shape.get("labels", {}).pop(name, None)
    return shapes[:1] if line == HEARTBEAT else shapes


def in_order(requests: list[Request]) -> list[str]:
    return sorted((request.line for request in requests if request.line in LIFE_CYCLE), key=LIFE_CYCLE.index)
