"""A pool of a cloud, round by round on a clock that is turned, against the vendors' servers with their quirks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from simpletuner_fleet.orchestrator.machines.provisioner import Provisioner
from simpletuner_fleet.storage.ownership import FLEET_ID
from simpletuner_fleet.store.sealing import SealedVault
from tests.http.api_kit import Agent, Running, orchestrator
from tests.providers.vendors.runpod_server import RunPodServer
from tests.providers.vendors.vast_server import VastServer
from tests.providers.vendors.vendor_server import KEY, VendorMachine, VendorServer

SETTLE_S = 120.0
SERVERS: dict[str, type[VendorServer]] = {"runpod": RunPodServer, "vast": VastServer}


class Cloud:
    def __init__(self, running: Running, vendor: VendorServer) -> None:
        self.running = running
        self.vendor = vendor

    async def save_pool(self, **request: Any) -> None:
        kind = next(kind for kind, type_ in SERVERS.items() if isinstance(self.vendor, type_))
        settings = {"image": "worker:1", "api_url": self.vendor.url}
        pool = {"provider": kind, "secret": "key", "settings": settings, "trainers": ["command"], **request}
        answer = await self.running.http.put("/api/pools/cloud", json=pool)
        assert answer.status_code == 200, answer.text

    async def round(self, after_s: float = 0.0) -> None:
        await round_of(self.running, after_s)

    async def waiting_job(self, **request: Any) -> str:
        config = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 1}}
        return str((await self.running.submit(config=config, **request))["job_id"])

    async def worker(self) -> Agent:
        """The newest machine's worker, joined, registered and streaming."""
        token = self.machine.environment["SIMPLETUNER_WORKER_TOKEN"]
        answer = await self.running.http.post(
            "/api/workers/join", json={"home": f"h_{self.machine.id}"}, headers={"x-worker-token": token}
        )
        assert answer.status_code == 200, answer.text
        agent = Agent(self.running, answer.json())
        price = self.machine.environment["SIMPLETUNER_WORKER_PRICE"]
        await agent.register(gpus=1, home=f"h_{self.machine.id}", price_micros=round(float(price) * 1e6))
        await agent.open_stream()
        return agent

    async def row(self) -> dict[str, Any]:
        """The newest machine, gone or not."""
        return dict((await self.running.get("/api/machines", gone="true"))["machines"][0])

    async def pool(self) -> dict[str, Any]:
        return dict((await self.running.get("/api/pools"))["pools"][0])

    async def explained(self, job_id: str) -> dict[str, Any]:
        return dict(await self.running.get(f"/api/jobs/{job_id}/explain"))

    @property
    def machine(self) -> VendorMachine:
        return list(self.vendor.machines.values())[-1]

    async def until_gone(self) -> None:
        await self.round(1.0)
        await self.round(SETTLE_S + 1.0)
        assert (await self.row())["status"] == "gone"
        assert self.vendor.costing() == []


async def round_of(running: Running, after_s: float = 0.0) -> None:
    running.clock.at += after_s
    provisioner = running.deps.provisioner
    assert provisioner is not None
    await provisioner.round_once(await running.fleet.read(lambda view: view.pools()))


@asynccontextmanager
async def with_provisioner(running: Running) -> AsyncIterator[None]:
    """Whose rounds are made by the test."""
    provisioner = running.deps.provisioner = Provisioner(running.fleet, Path("/nonexistent"), {}, {})
    await running.fleet.act(lambda transaction: transaction.tx.put_setting(FLEET_ID, "f_1"))
    running.clock.at += 1000.0
    yield
    await provisioner.stop()


@asynccontextmanager
async def cloud_of(vendor: VendorServer) -> AsyncIterator[Cloud]:
    vault = SealedVault(lambda: b"k" * 32, lambda: b"k" * 32)
    async with orchestrator(vault=vault) as made, with_provisioner(made):
        stored = await made.http.put("/api/secrets/key", json={"value": KEY})
        assert stored.status_code == 200, stored.text
        yield Cloud(made, vendor)
