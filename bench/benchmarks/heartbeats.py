"""Heartbeats a second that one core of the server answers; the clients have the other cores."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from bench.load.generator import connected_workers, create_accounts
from bench.load.handshakes import handshakes_per_cpu_s
from bench.load.orders import SendHeartbeats
from bench.load.tls_heartbeats import HeartbeatOutcome, HeartbeatTask
from bench.load.worker_messages import WorkerAccount
from bench.machine import pin
from bench.options import Options
from bench.programs import BenchmarkFailed, Server, end, running_server, scratch
from bench.rows import Results
from bench.targets import HEARTBEATS_KEPT, HEARTBEATS_NEW_TLS

TARGETS = (HEARTBEATS_KEPT, HEARTBEATS_NEW_TLS)
TITLE = "heartbeats of idle workers with open streams, the server on one core"
WORKERS = 256
"""So many that none comes near the limit of calls for one worker."""
TLS_CLIENTS = 6
HANDSHAKES = 500


def measure(options: Options, results: Results) -> None:
    server_cores, client_cores = divided_cores(sorted(os.sched_getaffinity(0)))
    _measure_kept(options, results, server_cores, client_cores)
    _measure_tls(options, results, server_cores, client_cores)


def divided_cores(cores: Sequence[int]) -> tuple[set[int], set[int]]:
    """Returns one core for the server and all others for the clients."""
    if len(cores) < 2:
        raise BenchmarkFailed("server and clients need a core each, and there is only one")
    return {cores[0]}, set(cores[1:])


class Costs:
    """What both ends used, period by period."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.server_ms: list[float] = []
        self.server_shares: list[float] = []
        self.client_shares: list[float] = []

    def note(self, heartbeats: int, seconds: float, server_cpu_s: float, client_cpu_s: float) -> None:
        if not heartbeats:
            raise BenchmarkFailed("no heartbeat was answered")
        self.rates.append(heartbeats / seconds)
        self.server_ms.append(server_cpu_s / heartbeats * 1e3)
        self.server_shares.append(server_cpu_s / seconds * 100)
        self.client_shares.append(client_cpu_s / seconds * 100)

    @property
    def per_cpu_second(self) -> list[float]:
        """Returns what one core could answer.

        It equals the rate where the server's core is full. A TLS handshake costs a client more than the server, so
        with as few cores for the clients as for the server its core never is.
        """
        return [1e3 / server_ms for server_ms in self.server_ms]

    def add_rows(self, results: Results, kind: str) -> None:
        results.add(f"server CPU per heartbeat, {kind}", "ms", self.server_ms)
        results.add(f"server CPU, {kind}", "% of a core", self.server_shares)
        results.add(f"client CPU, {kind}", "% of a core", self.client_shares)


def _measure_kept(options: Options, results: Results, server_cores: set[int], client_cores: set[int]) -> None:
    costs = Costs()
    with scratch() as folder, running_server(folder) as server:
        pin(server.pid, server_cores)
        with connected_workers(server, create_accounts(server, WORKERS)) as (generator,):
            pin(generator.pid, client_cores)
            for _ in range(options.repetitions):
                cpu_before = server.cpu_s
                answer = generator.carry_out(SendHeartbeats(options.heartbeat_s))
                costs.note(answer.heartbeats, answer.seconds, server.cpu_s - cpu_before, answer.cpu_s)
    results.judge(HEARTBEATS_KEPT, costs.rates, f"{WORKERS} workers, each with a connection it keeps")
    costs.add_rows(results, "kept connections")


def _measure_tls(options: Options, results: Results, server_cores: set[int], client_cores: set[int]) -> None:
    costs, resumed = Costs(), []
    with scratch() as folder, running_server(folder, tls=True) as server:
        pin(server.pid, server_cores)
        accounts = create_accounts(server, WORKERS)
        with connected_workers(server, accounts) as (generator,):
            pin(generator.pid, client_cores)
            for _ in range(options.repetitions):
                with _ready_clients(server, accounts, options.heartbeat_s, client_cores) as clients:
                    cpu_before = server.cpu_s
                    outcomes = _send(clients)
                    server_cpu_s = server.cpu_s - cpu_before
                heartbeats = sum(outcome.heartbeats for outcome in outcomes)
                seconds = max(outcome.seconds for outcome in outcomes)
                costs.note(heartbeats, seconds, server_cpu_s, sum(outcome.cpu_s for outcome in outcomes))
                resumed.append(sum(outcome.resumed for outcome in outcomes) / max(1, heartbeats) * 100)
    with scratch() as folder:
        alone = [handshakes_per_cpu_s(folder, HANDSHAKES) for _ in range(options.repetitions)]
    note = "each over a connection of its own, counted by the second of the server's CPU time"
    results.judge(HEARTBEATS_NEW_TLS, costs.per_cpu_second, note)
    results.add("resumed handshakes of OpenSSL alone", "/s", alone, "in memory, the server's side: the limit")
    results.add("the same, by the clock", "/s", costs.rates, "less where the clients' cores are the limit")
    results.add("sessions resumed", "%", resumed)
    costs.add_rows(results, "new TLS connections")


@contextmanager
def _ready_clients(
    server: Server, accounts: Sequence[WorkerAccount], seconds: float, cores: set[int]
) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Yields clients that have a session to resume and wait for the word."""
    with ExitStack() as stack:
        clients = [stack.enter_context(_tls_client(cores)) for _ in range(TLS_CLIENTS)]
        for number, client in enumerate(clients):
            task = HeartbeatTask(
                url=server.url,
                ca_file=str(server.ca_file),
                accounts=list(accounts[number::TLS_CLIENTS]),
                seconds=seconds,
            )
            _write_line(client, msgspec.json.encode(task))
        for client in clients:
            _read_line(client)
        yield clients


def _send(clients: Sequence["subprocess.Popen[bytes]"]) -> list[HeartbeatOutcome]:
    for client in clients:
        _write_line(client, b"go")
    return [msgspec.json.decode(_read_line(client), type=HeartbeatOutcome) for client in clients]


@contextmanager
def _tls_client(cores: set[int]) -> Iterator["subprocess.Popen[bytes]"]:
    argv = [sys.executable, "-m", "bench.load.tls_heartbeats"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        pin(client.pid, cores)
        try:
            yield client
        finally:
            end(client)


def _write_line(client: "subprocess.Popen[bytes]", line: bytes) -> None:
    assert client.stdin
    client.stdin.write(line + b"\n")
    client.stdin.flush()


def _read_line(client: "subprocess.Popen[bytes]") -> bytes:
    assert client.stdout
    line = client.stdout.readline()
    if not line:
        raise BenchmarkFailed("a TLS client ended before it answered")
    return line
