"""One real orchestrator and a handful of real workers; some speak to it through a proxy that can fail."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path

import httpx2

from devtools.chaos.deeper.namespaces import NetworkCell
from devtools.chaos.deeper.orders import Orders, built_library
from devtools.chaos.processes import (
    Program,
    end_everything_under,
    is_guarded,
    parent_of,
    send,
    shims_under,
    trainers_under,
)
from devtools.chaos.proxy import Proxy
from devtools.chaos.recorder import Recorder
from devtools.ports import free_port

PATIENCE_S = 120.0
"""Many fleets may share a machine."""
LOOK_AGAIN_S = 0.05
HEARTBEAT_TIMEOUT_S = 1.5
WORKERS = 4
BEHIND_PROXY = (1, 3)
"""Half of them see a dead orchestrator as a refused connection, half as a connection that breaks."""
IN_CELL = 3
"""Lives in a network namespace of its own, where there can be one; its proxy is at the other end of the wire."""
SETTLED_S = 2.5
"""A server looks every second whether its store still takes anything, and ends if not."""
OnRestored = Callable[[float, float, Collection[str]], Awaitable[None]]
SETTINGS = {
    "SIMPLETUNER_HEARTBEAT_INTERVAL": "0.2",
    "SIMPLETUNER_HEARTBEAT_TIMEOUT": str(HEARTBEAT_TIMEOUT_S),
    "SIMPLETUNER_RETRY_BACKOFF": "0.2",
    "SIMPLETUNER_PING_INTERVAL": "0.5",
    "SIMPLETUNER_OFFER_RESEND": "0.3",
    "SIMPLETUNER_OFFER_TIMEOUT": "5",
    "SIMPLETUNER_CANCEL_GRACE": "1",
}


class Worker:
    """A machine: its agent, its guardians, its trainers, and its connection to the orchestrator."""

    def __init__(self, name: str, folder: Path, proxy: Proxy | None) -> None:
        self.name = name
        self.id = ""
        self.folder = folder / name
        self.token_file = folder / f"{name}.token"
        self.proxy = proxy
        self.agent: Program
        self.orders: Orders | None = None
        self.down_on_purpose = False
        self.rotated_at = 0.0
        """When it was last given a new token, by the clock that also runs while the machine sleeps."""

    def write_token(self, token: str) -> None:
        new_file = self.token_file.with_suffix(".new")
        new_file.touch(mode=0o600)
        new_file.write_text(token)
        new_file.rename(self.token_file)

    def shims(self) -> list[int]:
        return shims_under(self.folder)

    def tree(self) -> list[int]:
        """Returns every living process of its trainers."""
        return trainers_under(self.folder)

    def trainers(self) -> list[int]:
        """Returns the trainers themselves, without what they left behind."""
        shims, tree = set(self.shims()), set(self.tree())
        return [pid for pid in tree if parent_of(pid) not in tree and is_guarded(pid, shims)]

    def die(self) -> None:
        """Does what a power cut does: nothing of it is left to say anything."""
        self.agent.kill()
        for pid in (*self.shims(), *self.tree()):
            send(pid, signal.SIGKILL)


class Patience:
    """So many seconds, without those in which the programs were ready to run and had no processor."""

    def __init__(self, for_s: float, starved_s: Callable[[], float]) -> None:
        self._for_s = for_s
        self._starved_s = starved_s
        self._began, self._starved_before = time.monotonic(), starved_s()

    @property
    def is_over(self) -> bool:
        starved_s = max(0.0, self._starved_s() - self._starved_before)
        return time.monotonic() - self._began - starved_s > self._for_s


class ChaosFleet:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "journal"
        self.home = folder / "server"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
        }
        self.library = built_library(folder)
        self.server_orders = self._orders("server")
        cell = NetworkCell()
        self.cell = cell if cell.open() else None
        self.on_restored: OnRestored | None = None
        """Told when the database was replaced by a backup: from when that is, when it was, and who needs a new token."""
        self.server = Program(
            "server",
            ("server", "--port", str(self.port), "--no-local"),
            {
                **self._environment,
                **SETTINGS,
                **(self.server_orders.environment if self.server_orders else {}),
                "SIMPLETUNER_HOME": str(self.home),
            },
            folder / "server.log",
        )
        self.workers: list[Worker] = []
        self.api: Recorder
        self._prober = httpx2.AsyncClient(trust_env=False, timeout=5.0)

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.home / 'fleet.db'}"

    async def start(self) -> None:
        await self.start_server()
        token = (self.home / "admin_token").read_text().strip()
        self.api = Recorder(self.url, token, self.folder / "calls")
        for number in range(WORKERS):
            await self._add_worker(number)
        await self.wait_until(self.all_connected, "every worker is connected")

    async def start_server(self) -> None:
        self.server.start()
        await self.wait_until(self._ready, "the server is ready")

    async def server_settles(self) -> None:
        """Whatever was done to it: it ends by itself and is started again, or goes on."""
        fine_since: float | None = None
        patience = Patience(PATIENCE_S, self._starved_s)
        while self.server.alive:
            now = time.monotonic()
            fine_since = (fine_since or now) if await self._answers_ready() else None
            if fine_since is not None and now - fine_since > SETTLED_S:
                return
            if patience.is_over:
                raise AssertionError("the server neither works nor ends")
            await asyncio.sleep(LOOK_AGAIN_S)
        await self.start_server()

    async def wait_until(
        self, condition: Callable[[], Awaitable[bool]], what: str, within_s: float = PATIENCE_S
    ) -> None:
        """Fails after a while, but blames no program for the processor that others had."""
        patience = Patience(within_s, self._starved_s)
        while not await condition():
            if patience.is_over:
                raise AssertionError(f"not within {within_s:g} s: {what}")
            await asyncio.sleep(LOOK_AGAIN_S)

    def _starved_s(self) -> float:
        programs = [self.server, *(worker.agent for worker in self.workers)]
        return max((program.starved_s for program in programs if program.alive), default=0.0)

    def _orders(self, name: str) -> Orders | None:
        return Orders(self.library, self.folder / f"{name}.orders") if self.library else None

    async def _ready(self) -> bool:
        if not self.server.alive:
            raise AssertionError(f"the server ended: {self.server.log.read_text()[-2000:]}")
        return await self._answers_ready()

    async def _answers_ready(self) -> bool:
        try:
            return (await self._prober.get(f"{self.url}/health/ready")).status_code == 200
        except httpx2.TransportError:
            return False

    async def _add_worker(self, number: int) -> None:
        cell = self.cell if number == IN_CELL else None
        proxy = Proxy(self.port, cell.outer if cell else "127.0.0.1") if number in BEHIND_PROXY else None
        if proxy:
            await proxy.start()
        worker = Worker(f"worker-{number}", self.folder, proxy)
        worker.orders = self._orders(worker.name)
        answer = await self.api.call_until_answered("POST", "/api/admin/workers", {"name": worker.name})
        worker.id = answer.body["worker_id"]
        worker.write_token(answer.body["token"])
        gpus = 1 + number % 2
        url = f"http://{proxy.host}:{proxy.port}" if proxy else self.url
        worker.agent = Program(
            worker.name,
            (
                *("worker", "--orchestrator-url", url, "--worker-token-file", str(worker.token_file)),
                *("--name", worker.name, "--persistent", "--work-dir", str(worker.folder)),
                *("--max-jobs", str(gpus)),
                *(("--plain-http",) if cell else ()),
            ),
            {
                **self._environment,
                **(worker.orders.environment if worker.orders else {}),
                # Trainers are known by their pid and write a journal of the whole fleet.
                "SIMPLETUNER_ISOLATION": "none",
                "SIMPLETUNER_GPU_INVENTORY": json.dumps([{"name": "A100", "vram_gb": 80, "count": gpus}]),
            },
            self.folder / f"{worker.name}.log",
            cell.command if cell else (),
        )
        worker.agent.start()
        self.workers.append(worker)

    async def all_connected(self) -> bool:
        answer = await self.api.call("GET", "/api/admin/workers")
        workers = answer.body.get("workers", [])
        return len(workers) == WORKERS and all(worker["status"] in ("idle", "busy") for worker in workers)

    async def all_idle(self) -> bool:
        answer = await self.api.call("GET", "/api/admin/workers")
        workers = answer.body.get("workers", [])
        return len(workers) == WORKERS and all(worker["status"] == "idle" for worker in workers)

    async def stop(self) -> list[str]:
        """Stops every program in order and returns which one did not end as it should."""
        programs = [worker.agent for worker in self.workers] + [self.server]
        for program in programs:
            if program.alive:
                program.signal(signal.SIGTERM)
            try:
                ended = partial(_ended, program)
                await self.wait_until(ended, f"{program.name} ends", 20.0)
            except AssertionError:
                program.kill()
                return [f"{program.name} did not end on SIGTERM"]
        return [
            f"{program.name} ended with code {program.exit_code}"
            for program in programs
            if program.exit_code != 0
        ]

    async def clean_up(self) -> None:
        for worker in self.workers:
            if worker.agent.alive:
                worker.agent.kill()
            if worker.proxy:
                await worker.proxy.close()
        if self.server.alive:
            self.server.kill()
        end_everything_under([worker.folder for worker in self.workers])
        if self.cell:
            self.cell.close()
        await self._prober.aclose()
        if hasattr(self, "api"):
            await self.api.close()


async def _ended(program: Program) -> bool:
    return not program.alive
