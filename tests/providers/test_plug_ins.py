"""A provider that an installed package brings: found by its entry point, and a job trains on its machine."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simpletuner_fleet.providers.registry import kinds
from tests.http.api_kit import Agent, Running, orchestrator
from tests.orchestrator.machines.cloud_kit import round_of, with_provisioner

SHED = """
from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.providers.contract import CreatedMachine

ORDERS = {}


class Shed:
    settle_s, sweep_s = 1.0, 1.0

    def __init__(self, surroundings):
        self.price = int(surroundings.pool.request.settings["price_micros"])

    async def offers(self):
        return [MachineOffer(id="shed", hourly_micros=self.price, gpu_name="A100", gpus=1, vram_gb=80.0)]

    async def create(self, order):
        ORDERS[order.name] = order
        return CreatedMachine(provider_id=order.name)

    async def machines(self):
        return [ListedMachine(provider_id=name, name=name) for name in ORDERS]

    async def destroy(self, provider_id):
        ORDERS.pop(provider_id, None)

    async def boot_log(self, provider_id):
        return ""
"""
POOL = {
    "provider": "shed",
    "settings": {"price_micros": "750000"},
    "trainers": ["command"],
    "max_machines": 1,
    "idle_s": 600,
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an installer leaves it: the module, and beside it the metadata with its entry points."""
    metadata = tmp_path / "shed-1.0.dist-info"
    metadata.mkdir()
    (tmp_path / "shed_machines.py").write_text(SHED)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shed\nVersion: 1.0\n")
    points = "[simpletuner_fleet.providers]\nshed = shed_machines:Shed\nbroken = no_such_module:Provider\n"
    (metadata / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shed_machines", raising=False)


@pytest.fixture
async def running(installed: None) -> AsyncIterator[Running]:
    async with orchestrator() as made, with_provisioner(made):
        yield made


def test_a_broken_plug_in_is_left_out_and_keeps_nobody_from_working(
    installed: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert {"shed", "runpod"} <= set(kinds())
    assert "broken" not in kinds()
    assert "'broken' cannot be loaded" in caplog.text


async def test_a_job_brings_a_machine_of_a_plug_in_and_trains_there(running: Running) -> None:
    answer = await running.http.put("/api/pools/garden", json=POOL)
    assert answer.status_code == 200, answer.text
    config = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 1}}
    job_id = (await running.submit(config=config))["job_id"]
    await round_of(running)
    explained = await running.get(f"/api/jobs/{job_id}/explain")
    assert "shed, 1 x A100 80 GB, 0.75 USD an hour, booting for 0 s" in explained["sentence"]
    (order,) = sys.modules["shed_machines"].ORDERS.values()
    joined = await running.http.post(
        "/api/workers/join",
        json={"home": "h_1"},
        headers={"x-worker-token": order.environment["SIMPLETUNER_WORKER_TOKEN"]},
    )
    agent = Agent(running, joined.json())
    await agent.register(gpus=1, home="h_1")
    await agent.open_stream()
    offer = await agent.take()
    await agent.report(offer, "running")
    await agent.report(offer, "completed")
    assert (await running.job(job_id))["status"] == "completed"
    for after_s in (600.0, 1.0, 2.0):
        await round_of(running, after_s)
    (machine,) = (await running.get("/api/machines", gone="true"))["machines"]
    assert (machine["status"], machine["why"], sys.modules["shed_machines"].ORDERS) == ("gone", "idle", {})
