"""The benchmark's end of a load process."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import msgspec

from bench.load.orders import Connect, LoadAnswer, LoadOrder, Setup
from bench.load.worker_messages import WorkerAccount
from bench.programs import BenchmarkFailed, Server, end

NOOP_CONFIG = {"trainer": "command", "settings": {"command": ["/bin/true"]}, "resources": {"gpus": 1}}
NOOP = "bench-noop"
SUBMIT_NOOP = {"config_name": NOOP, "target": "worker"}
CREATORS = 8


class LoadGenerator:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Setup | LoadOrder) -> None:
        assert self._process.stdin
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")
        self._process.stdin.flush()

    def receive(self) -> LoadAnswer:
        """Returns the answer; raises BenchmarkFailed where anything failed."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkFailed("the load process ended before it answered")
        answer = msgspec.json.decode(line, type=LoadAnswer)
        if answer.failures or answer.lost_streams:
            raise BenchmarkFailed(
                f"{answer.lost_streams} streams lost, {answer.failures} calls failed: {answer.last_failure}"
            )
        return answer

    def carry_out(self, order: LoadOrder) -> LoadAnswer:
        self.send(order)
        return self.receive()


def create_accounts(server: Server, count: int) -> list[WorkerAccount]:
    def create(number: int) -> WorkerAccount:
        name = f"load-{number}"
        created = server.post("/api/admin/workers", {"name": name})
        return WorkerAccount(name=name, token=created["token"], worker_id=created["worker_id"])

    with ThreadPoolExecutor(CREATORS) as pool:
        return list(pool.map(create, range(count)))


@contextmanager
def connected_workers(
    server: Server, accounts: Sequence[WorkerAccount], processes: int = 1
) -> Iterator[list[LoadGenerator]]:
    """Yields load processes that submit a job which does nothing, and whose workers have their streams open."""
    server.put_config(NOOP, NOOP_CONFIG)
    with connected_load(server, accounts, processes) as generators:
        yield generators


@contextmanager
def connected_load(
    server: Server, accounts: Sequence[WorkerAccount], processes: int = 1
) -> Iterator[list[LoadGenerator]]:
    """Yields load processes whose workers are all registered and have their streams open."""
    body = msgspec.json.encode(SUBMIT_NOOP).decode()
    with ExitStack() as stack:
        generators = [stack.enter_context(_load_process()) for _ in range(processes)]
        for number, generator in enumerate(generators):
            setup = Setup(
                url=server.url,
                ca_file=str(server.ca_file) if server.ca_file else None,
                admin_token=server.admin_token,
                accounts=list(accounts[number::processes]),
                submit_body=body,
            )
            generator.send(setup)
            generator.send(Connect())
        for generator in generators:
            generator.receive()
        yield generators


@contextmanager
def _load_process() -> Iterator[LoadGenerator]:
    argv = [sys.executable, "-m", "bench.load.process"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield LoadGenerator(process)
    finally:
        assert process.stdin
        process.stdin.close()
        end(process)
        assert process.stdout
        process.stdout.close()
