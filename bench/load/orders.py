"""What a benchmark tells a load process to do, and what it answers: one line of JSON each."""

import msgspec

from bench.load.worker_messages import WorkerAccount


class Setup(msgspec.Struct, kw_only=True):
    """The first line of all."""

    url: str
    ca_file: str | None
    admin_token: str
    accounts: list[WorkerAccount]
    submit_body: str = "{}"


class Connect(msgspec.Struct, tag="connect"):
    """Registers every worker and opens its stream."""


class RunJobs(msgspec.Struct, tag="run_jobs"):
    """Submits so many jobs, as fast as they are taken, and completes as many."""

    jobs: int
    submitters: int


class Attend(msgspec.Struct, tag="attend"):
    """Sends heartbeats, evenly spread, for a while, and now and then a job."""

    seconds: float
    heartbeat_interval_s: float
    submits_per_s: float


class SendHeartbeats(msgspec.Struct, tag="send_heartbeats"):
    """Sends heartbeats on kept connections, each worker the next one as soon as the last is answered."""

    seconds: float


LoadOrder = Connect | RunJobs | Attend | SendHeartbeats


class LoadAnswer(msgspec.Struct, kw_only=True):
    """The answer to every order."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    completed: int = 0
    heartbeats: int = 0
    lost_streams: int = 0
    failures: int = 0
    last_failure: str = ""
    submitted_at: dict[str, float] = {}
    offered_at: dict[str, float] = {}
