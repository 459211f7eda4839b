"""Machines that run while something changes at their provider: the price, the key, the money that is left."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from simpletuner_fleet.queries.attention import Need, of_machines
from simpletuner_fleet.web.parts.attention import attention
from tests.http.api_kit import Agent
from tests.orchestrator.machines.cloud_kit import SETTLE_S, Cloud, cloud_of
from tests.providers.vendors.runpod_server import RunPodServer

HOUR_S = 3600.0
PRICE = 1_890_000


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    with RunPodServer() as vendor:
        async with cloud_of(vendor) as made:
            yield made


async def at_work(cloud: Cloud, **request: Any) -> tuple[Agent, dict[str, Any]]:
    """A pool whose one machine trains a job."""
    await cloud.save_pool(max_machines=1, idle_s=100_000, **request)
    await cloud.waiting_job()
    await cloud.round()
    agent = await cloud.worker()
    offer = await agent.take()
    await agent.report(offer, "running")
    await cloud.round()
    return agent, offer


async def kept_alive(cloud: Cloud, agent: Agent, offer: dict[str, Any], for_s: float) -> None:
    cloud.running.clock.at += for_s
    await agent.heartbeat(offer)


async def test_a_price_that_changes_under_a_running_job_is_what_everything_costs_from_then_on(
    cloud: Cloud,
) -> None:
    agent, offer = await at_work(cloud, max_hourly_micros=10_000_000)
    asked = (await cloud.row())["cost_micros"]
    await kept_alive(cloud, agent, offer, HOUR_S)
    cloud.machine.dollars = 3.0
    await cloud.round()
    await kept_alive(cloud, agent, offer, HOUR_S)
    row, pool = await cloud.row(), await cloud.pool()
    assert (row["status"], row["hourly_micros"]) == ("joined", 3_000_000)
    assert row["cost_micros"] - asked == PRICE + 3_000_000
    assert (pool["hourly_micros"], pool["this_month_micros"]) == (3_000_000, row["cost_micros"])
    worker = await cloud.running.get(f"/api/admin/workers/{agent.id}")
    assert worker["reported_price_micros"] == 3_000_000
    first = (await cloud.running.job(offer["job_id"]))["cost"]
    assert (first["micros"], first["hourly_micros"]) == (PRICE + 3_000_000, 3_000_000)
    await agent.report(offer, "completed")
    assert (await cloud.running.job(offer["job_id"]))["spent_micros"] == PRICE + 3_000_000
    second = await cloud.waiting_job()
    await agent.take()
    assert (await cloud.running.job(second))["cost"]["hourly_micros"] == 3_000_000


async def test_a_worker_that_registers_again_does_not_bring_its_first_price_back(cloud: Cloud) -> None:
    agent, offer = await at_work(cloud)
    cloud.machine.dollars = 3.0
    await cloud.round()
    held = [{"job_id": offer["job_id"], "epoch": offer["epoch"]}]
    await agent.register(gpus=1, home=f"h_{cloud.machine.id}", price_micros=PRICE, attempts=held)
    await cloud.round()
    worker = await cloud.running.get(f"/api/admin/workers/{agent.id}")
    assert worker["reported_price_micros"] == 3_000_000


@pytest.mark.parametrize("policy", ["stop", "finish"])
async def test_a_price_that_passes_the_limit_of_an_hour_ends_the_machine_by_policy(
    cloud: Cloud, policy: str
) -> None:
    agent, offer = await at_work(cloud, max_hourly_micros=2_000_000, over_budget=policy)
    cloud.machine.dollars = 2.5
    await cloud.round(1.0)
    row = await cloud.row()
    assert (row["status"], row["why"]) == ("draining", "budget")
    await let_go(cloud, agent, offer, policy)


@pytest.mark.parametrize("policy", ["stop", "finish"])
async def test_when_the_budget_of_a_day_is_reached_a_running_job_is_stopped_or_finishes(
    cloud: Cloud, policy: str
) -> None:
    agent, offer = await at_work(cloud, max_daily_micros=4_000_000, over_budget=policy)
    await kept_alive(cloud, agent, offer, HOUR_S)
    await cloud.round()
    assert (await cloud.row())["status"] == "joined"
    await kept_alive(cloud, agent, offer, 0.95 * HOUR_S)
    await cloud.round()
    row, waiting = await cloud.row(), await cloud.waiting_job()
    assert (row["status"], row["why"]) == ("draining", "budget")
    await let_go(cloud, agent, offer, policy)
    assert (await cloud.running.job(waiting))["status"] == "queued", "also where the job before it finished"
    explained = await cloud.explained(waiting)
    assert (explained["code"], explained["params"]["ceiling"]) == ("MACHINE_CEILING", "max_daily")
    assert "1.89 USD" in explained["sentence"]
    assert cloud.vendor.count("create") == 1


async def let_go(cloud: Cloud, agent: Agent, offer: dict[str, Any], policy: str) -> None:
    """Stopped jobs go back into the queue; others end by themselves. Then the machine goes."""
    machine_id = (await cloud.row())["id"]
    if policy == "stop":
        await agent.events.next("job_cancel")
        await agent.report(offer, "released")
        assert (await cloud.running.job(offer["job_id"]))["status"] == "queued"
    else:
        assert agent.events.of_kind("job_cancel") == []
        await agent.report(offer, "completed")
        assert (await cloud.running.job(offer["job_id"]))["status"] == "completed"
    await until_it_is_gone(cloud, machine_id)


async def until_it_is_gone(cloud: Cloud, machine_id: str) -> None:
    """Whatever else is brought for jobs that wait."""
    for after_s in (1.0, 1.0, SETTLE_S + 1.0):
        await cloud.round(after_s)
    assert (await cloud.running.get(f"/api/machines/{machine_id}"))["status"] == "gone"


async def test_where_the_key_is_withdrawn_machines_count_as_costing_and_everybody_is_told(
    cloud: Cloud,
) -> None:
    agent, offer = await at_work(cloud)
    before = (await cloud.row())["cost_micros"]
    for kind in ("list", "destroy", "offers"):
        cloud.vendor.faults[kind].extend(["401"] * 9)
    waiting = await cloud.waiting_job()
    await cloud.round(1.0)
    assert "pools_unseen" not in await needs(cloud), "not for a moment"
    await kept_alive(cloud, agent, offer, HOUR_S)
    await cloud.round()
    row, pool = await cloud.row(), await cloud.pool()
    assert (row["status"], row["cost_micros"] - before >= PRICE) == ("joined", True)
    assert "refuses the key" in pool["trouble"]
    assert await needs(cloud) == ["pools_unseen"]
    line = attention(Need(kind="pools_unseen", count=1, named=(("cloud", "cloud"),)), None)
    assert (line.grave, line.named) == (True, (("/machines/pools/cloud", "cloud"),))
    assert line.text.startswith("1 pool's provider cannot be asked: its machines go on costing money")
    assert (await cloud.running.job(offer["job_id"]))["status"] == "running"
    assert (await cloud.explained(waiting))["code"] == "ALL_MATCHING_BUSY"
    await agent.report(offer, "completed")
    await cloud.running.post(f"/api/machines/{row['id']}/end", {"now": True})
    await cloud.round(10 * SETTLE_S)
    row = await cloud.row()
    assert (row["status"], row["hourly_micros"]) == ("destroying", PRICE), "it is not gone for being unseen"
    for faults in cloud.vendor.faults.values():
        faults.clear()
    await until_it_is_gone(cloud, row["id"])
    assert await needs(cloud) == []


async def needs(cloud: Cloud) -> list[str]:
    fleet = cloud.running.fleet
    return [one.kind for one in await fleet.read(lambda view: of_machines(view, fleet.clock.now()))]
