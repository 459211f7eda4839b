"""What a person waits for, with the real server and the real agent: start, completion, and the start of the next job."""

import http.client
import json
import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct, field

from bench.benchmarks import stamping_trainer
from bench.benchmarks.job_watch import JobWatch
from bench.machine import fdatasync_ms, fork_exec_ms
from bench.options import Options
from bench.programs import BenchmarkFailed, Server, jobs_folder, running_agents, running_server, scratch
from bench.rows import Results, Target, percentile
from bench.targets import COMPLETED_P50, COMPLETED_P99, NEXT_P50, NEXT_P99, START_P50, START_P99

TARGETS = (START_P50, START_P99, COMPLETED_P50, COMPLETED_P99, NEXT_P50, NEXT_P99)
TITLE = "waits with the real server and one real agent, SQLite FULL"
LONGEST_MS = 300
"""A trainer runs for any time below this, so that it ends at any moment of the agent's rounds."""
WARM_UP_JOBS = 3
PAUSE_S = 0.05
"""Between two jobs, so that the worker is idle again and not merely done."""


class Waits(Struct):
    """The waits of one repetition."""

    start_ms: list[float] = field(default_factory=list)
    completed_ms: list[float] = field(default_factory=list)


def measure(options: Options, results: Results) -> None:
    with scratch() as folder:
        fork = results.add("fork + exec", "ms", fork_exec_ms(), "the machine")
        sync = results.add("one fdatasync", "ms", fdatasync_ms(folder), "the machine")
        with ExitStack() as stack:
            after_the_server = stack.enter_context(ExitStack())
            server = stack.enter_context(running_server(folder))
            stack.enter_context(running_agents(server, folder))
            submitter = after_the_server.enter_context(closing(Submitter(server, folder)))
            repetitions = 1 if options.quick else 3
            waits = submitter.measure_single_jobs(options.latency_jobs, repetitions)
            _add_rows(results, START_P50, START_P99, [repetition.start_ms for repetition in waits])
            _add_rows(
                results, COMPLETED_P50, COMPLETED_P99, [repetition.completed_ms for repetition in waits]
            )
            _add_rows(results, NEXT_P50, NEXT_P99, [submitter.measure_line_of_jobs(options.next_jobs)])
        results.add("limit of the start", "ms", [fork + 2 * sync], "one fork + exec and two fdatasyncs")


def _add_rows(results: Results, p50: Target, p99: Target, repetitions: list[list[float]]) -> None:
    note = f"{sum(len(waits) for waits in repetitions)} jobs"
    results.judge(p50, [percentile(waits, 0.50) for waits in repetitions], note)
    results.judge(p99, [percentile(waits, 0.99) for waits in repetitions], note)


class Submitter:
    """Submits over one connection, as a client that is kept open does."""

    def __init__(self, server: Server, folder: Path) -> None:
        address = urlsplit(server.url)
        shared = jobs_folder(folder)
        self._stamps = shared / "stamps"
        self._watch = JobWatch(server)
        self._connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = {
            "Authorization": f"Bearer {server.admin_token}",
            "Content-Type": "application/json",
        }
        command = stamping_trainer.command(shared, self._stamps, LONGEST_MS)
        server.put_config("stamp", {"trainer": "command", "settings": {"command": command}})

    def close(self) -> None:
        self._connection.close()
        self._watch.close()

    def measure_single_jobs(self, jobs: int, repetitions: int) -> list[Waits]:
        """Each job finds the worker idle."""
        for _ in range(WARM_UP_JOBS):
            self._run_one(Waits())
        measured = [Waits() for _ in range(repetitions)]
        for waits in measured:
            for _ in range(jobs):
                self._run_one(waits)
        return measured

    def measure_line_of_jobs(self, jobs: int) -> list[float]:
        """All jobs wait for the one worker; returns from each trainer's end to the next one's start."""
        self._stamps.unlink()
        submitted = [self._submit() for _ in range(jobs)]
        for job_id in submitted:
            self._watch.completed_ns(job_id)
        return stamping_trainer.gaps_ms(stamping_trainer.read_runs(self._stamps.read_text()))

    def _run_one(self, waits: Waits) -> None:
        self._stamps.unlink(missing_ok=True)
        sent_ns = time.time_ns()
        completed_ns = self._watch.completed_ns(self._submit())
        (run,) = stamping_trainer.read_runs(self._stamps.read_text())
        waits.start_ms.append((run.started_ns - sent_ns) / 1e6)
        waits.completed_ms.append((completed_ns - run.ended_ns) / 1e6)
        time.sleep(PAUSE_S)

    def _submit(self) -> str:
        body = json.dumps({"config_name": "stamp", "target": "worker"})
        self._connection.request("POST", "/api/queue/submit", body, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise BenchmarkFailed(
                f"a submission was answered {answer.status}: {content.decode(errors='replace')}"
            )
        return str(json.loads(content)["job_id"])
