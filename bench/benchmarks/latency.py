"""From the submission to the trainer's first instruction: an idle worker, everything durable on the way."""

import http.client
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

from bench.machine import fdatasync_ms, fork_exec_ms
from bench.options import Options
from bench.peers import slurm_peer
from bench.programs import NotInTime, Server, running_agents, running_server, scratch
from bench.rows import Result, percentile

P50_MS, P99_MS = 15.0, 60.0
SLURM_QUOTED_MS = 700.0
TIMES_FASTER = 30.0
WITHIN_S = 30.0
PAUSE_S = 0.05
"""Between two jobs, so that the worker is idle again and not merely done."""
STAMP = r"""
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct timespec at;
    char line[32];
    clock_gettime(CLOCK_REALTIME, &at);
    int length = snprintf(line, sizeof line, "%lld%09ld\n", (long long)at.tv_sec, at.tv_nsec);
    int file = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
    return argc != 2 || write(file, line, length) != length;
}
"""


def measure(options: Options) -> Result:
    result = Result(
        benchmark="latency", title="submit to the trainer's process running, idle worker, SQLite FULL"
    )
    repetitions = min(3, options.repetitions)
    with scratch() as folder:
        fork = result.add("fork + exec", "ms", fork_exec_ms(), "the machine")
        sync = result.add("one fdatasync", "ms", fdatasync_ms(folder), "the machine")
        with running_server(folder) as server, running_agents(server, folder):
            runs = _runs(server, folder, options.latency_jobs, repetitions)
        p50 = result.add("p50", "ms", [percentile(run, 0.50) for run in runs], f"{len(runs[0])} jobs each")
        p99 = result.add("p99", "ms", [percentile(run, 0.99) for run in runs])
        result.add(
            "p50 against the limit", "x", [p50 / (fork + 2 * sync)], "one fork + exec and two fdatasyncs"
        )
        _beside_slurm(folder, options, result, p50)
    result.at_most("p50", p50, P50_MS, "ms")
    result.at_most("p99", p99, P99_MS, "ms")
    return result


def _runs(server: Server, folder: Path, jobs: int, repetitions: int) -> list[list[float]]:
    stamps = folder / "stamps"
    stamps.touch()
    command = stamp_command(folder, stamps)
    server.put_config("stamp", {"trainer": "command", "settings": {"command": command}})
    submitter = Submitter(server, stamps)
    for _ in range(5):
        submitter.run_one()
    return [[submitter.run_one() for _ in range(jobs)] for _ in range(repetitions)]


def stamp_command(folder: Path, stamps: Path) -> list[str]:
    """A program whose first act is to note the time; a compiled one where there is a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return ["/bin/sh", "-c", f"date +%s%N >>{stamps}"]
    source, program = folder / "stamp.c", folder / "stamp"
    source.write_text(STAMP)
    subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
    return [str(program), str(stamps)]


class Submitter:
    """One job after another over one connection."""

    def __init__(self, server: Server, stamps: Path) -> None:
        parts = urlsplit(server.url)
        self._server = server
        self._stamps = stamps
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = {
            "authorization": f"Bearer {server.admin_token}",
            "content-type": "application/json",
        }
        self._body = json.dumps({"config_name": "stamp", "target": "worker"})

    def run_one(self) -> float:
        """Milliseconds from before the request was sent until the trainer noted the time."""
        seen = self._stamps.stat().st_size
        sent_ns = time.time_ns()
        job_id = self._ask("POST", "/api/queue/submit", self._body)["job_id"]
        started_ns = self._await_stamp(seen)
        self._await_completion(job_id)
        time.sleep(PAUSE_S)
        return (started_ns - sent_ns) / 1e6

    def _ask(self, method: str, path: str, body: str | None = None) -> dict[str, str]:
        self._connection.request(method, path, body, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise NotInTime(f"{path} answered {answer.status}: {text.decode(errors='replace')}")
        found: dict[str, str] = json.loads(text)
        return found

    def _await_stamp(self, seen: int) -> int:
        return await_stamp(self._stamps, seen)

    def _await_completion(self, job_id: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while self._ask("GET", f"/api/jobs/{job_id}")["status"] != "completed":
            if time.monotonic() > deadline:
                raise NotInTime("a job did not complete")
            time.sleep(0.01)


def await_stamp(stamps: Path, seen: int) -> int:
    """The time in the next line; asked for seldom enough not to be in the way."""
    deadline = time.monotonic() + WITHIN_S
    while stamps.stat().st_size <= seen or not stamps.read_text().endswith("\n"):
        if time.monotonic() > deadline:
            raise NotInTime("a trainer did not start")
        time.sleep(0.002)
    return int(stamps.read_text()[seen:].split()[0])


def _beside_slurm(folder: Path, options: Options, result: Result, p50: float) -> None:
    if not slurm_peer.installed():
        times = result.add("Slurm against ours", "x", [SLURM_QUOTED_MS / p50])
        result.note("Slurm is not installed here; its 0.7 s from sbatch to start are quoted, not measured")
    else:
        stamps = folder / "slurm-stamps"
        stamps.touch()
        jobs = 5 if options.quick else 20
        with slurm_peer.running_slurm(folder) as slurm:
            command = stamp_command(folder, stamps)
            found = []
            for _ in range(jobs):
                seen, sent_ns = stamps.stat().st_size, time.time_ns()
                slurm.submit(command)
                found.append((await_stamp(stamps, seen) - sent_ns) / 1e6)
                time.sleep(PAUSE_S)
        slurm_p50 = percentile(found, 0.5)
        result.add(
            "Slurm, sbatch to start, p50", "ms", [slurm_p50], f"{jobs} jobs, measured in this run, tuned"
        )
        times = result.add("Slurm against ours", "x", [slurm_p50 / p50])
    result.at_least("times faster than Slurm", times, TIMES_FASTER, "x")
