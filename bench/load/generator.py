"""The parent's end of a crowd of protocol-speaking workers in another process."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import msgspec

from bench.load.process import Connect, Order, Seat, Setup, Told
from bench.programs import DOWN_WITHIN_S, NotInTime, Server

NOOP_CONFIG = {"trainer": "command", "settings": {"command": ["/bin/true"]}, "resources": {"gpus": 1}}
NOOP = "bench-noop"
CREATORS = 8


class Crowd:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def tell(self, message: Setup | Order) -> None:
        assert self._process.stdin
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")
        self._process.stdin.flush()

    def hear(self) -> Told:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise NotInTime("the crowd of workers ended before it answered")
        return msgspec.json.decode(line, type=Told)

    def ask(self, order: Order) -> Told:
        self.tell(order)
        return self.hear()


def create_seats(server: Server, count: int) -> list[Seat]:
    def create(number: int) -> Seat:
        name = f"crowd-{number}"
        return Seat(name, server.post("/api/admin/workers", {"name": name})["token"])

    with ThreadPoolExecutor(CREATORS) as pool:
        return list(pool.map(create, range(count)))


@contextmanager
def crowds(server: Server, seats: Sequence[Seat], processes: int = 1) -> Iterator[list[Crowd]]:
    """Every worker registered and listening."""
    server.put_config(NOOP, NOOP_CONFIG)
    body = msgspec.json.encode({"config_name": NOOP, "target": "worker"}).decode()
    with ExitStack() as stack:
        made = [stack.enter_context(_crowd()) for _ in range(processes)]
        for number, crowd in enumerate(made):
            share = list(seats[number::processes])
            crowd.tell(Setup(url=server.url, admin_token=server.admin_token, seats=share, submit_body=body))
            crowd.tell(Connect())
        for crowd in made:
            crowd.hear()
        yield made


@contextmanager
def _crowd() -> Iterator[Crowd]:
    argv = [sys.executable, "-m", "bench.load.process"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield Crowd(process)
    finally:
        assert process.stdin
        process.stdin.close()
        try:
            process.wait(DOWN_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
