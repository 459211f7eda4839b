"""A pool of a cloud, round by round on a clock that is turned, against the vendors' servers with their quirks."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.orchestrator.machines.cloud_kit import SERVERS, SETTLE_S, Cloud, cloud_of
from tests.providers.vendors.runpod_server import RunPodServer
from tests.providers.vendors.vast_server import VastServer
from tests.providers.vendors.vendor_server import KEY, VendorServer

BOOT_S = 900.0
HIDDEN_S = 1e9


@pytest.fixture(params=sorted(SERVERS))
def vendor(request: pytest.FixtureRequest) -> Iterator[VendorServer]:
    with SERVERS[request.param]() as server:
        yield server


@pytest.fixture
async def cloud(vendor: VendorServer) -> AsyncIterator[Cloud]:
    async with cloud_of(vendor) as made:
        yield made


async def test_explain_names_the_vendor_the_machine_its_price_and_for_how_long_it_boots(cloud: Cloud) -> None:
    await cloud.save_pool()
    job_id = await cloud.waiting_job()
    await cloud.round()
    cloud.running.clock.at += 40.0
    explained = await cloud.running.get(f"/api/jobs/{job_id}/explain")
    machine = {
        RunPodServer: "RunPod, 1 x A100 80GB 80 GB, 1.89 USD an hour",
        VastServer: "Vast.ai, 1 x RTX 4090 23 GB, 0.50 USD an hour",
    }[type(cloud.vendor)]
    wanted = f"waiting for a machine of the pool cloud: {machine}, booting for 40 s"
    assert explained["sentence"] == wanted


async def test_a_job_that_allows_less_than_it_costs_is_told_so(cloud: Cloud) -> None:
    await cloud.save_pool()
    job_id = await cloud.waiting_job(max_price_micros=100_000)
    await cloud.round()
    explained = await cloud.running.get(f"/api/jobs/{job_id}/explain")
    assert (explained["code"], explained["params"]["allowed"]) == ("MACHINE_TOO_DEAR", "0.10 USD")
    assert cloud.vendor.count("create") == 0


async def test_a_job_whose_cost_limit_pays_for_no_machine_is_told_so(cloud: Cloud) -> None:
    await cloud.save_pool()
    job_id = await cloud.waiting_job(max_cost_micros=10_000)
    await cloud.round()
    explained = await cloud.explained(job_id)
    assert (explained["code"], explained["params"]["left"]) == ("MACHINE_COST_LIMIT", "0.01 USD")
    assert cloud.vendor.count("create") == 0
    raised = await cloud.running.http.patch(f"/api/jobs/{job_id}", json={"max_cost_micros": 1_000_000})
    assert raised.status_code == 200, raised.text
    await cloud.round()
    assert cloud.vendor.count("create") == 1


async def test_an_answer_that_is_lost_and_a_list_that_lags_make_no_second_machine(cloud: Cloud) -> None:
    await cloud.save_pool(max_machines=2)
    await cloud.waiting_job()
    cloud.vendor.faults["create"].append("lost answer")
    cloud.vendor.lag_s = HIDDEN_S
    await cloud.round()
    await cloud.round(SETTLE_S / 2)
    assert ((await cloud.row())["status"], cloud.vendor.count("create")) == ("asked", 1)
    cloud.machine.shown_from = 0.0
    await cloud.round(SETTLE_S / 3)
    assert ((await cloud.row())["status"], cloud.vendor.count("create")) == ("booting", 1)


async def test_a_machine_that_never_boots_is_destroyed_though_the_first_calls_fail(cloud: Cloud) -> None:
    await cloud.save_pool()
    await cloud.waiting_job()
    await cloud.round()
    cloud.vendor.faults["destroy"].extend(["lost request", "500 after"])
    await cloud.round(BOOT_S)
    assert cloud.machine.costs
    await cloud.round(1.0)
    row = await cloud.row()
    assert (row["why"], row["boot_log"] != "") == ("boot_deadline", True)
    await cloud.until_gone()


async def test_a_machine_that_vanishes_is_counted_until_its_list_has_settled(cloud: Cloud) -> None:
    await cloud.save_pool()
    await cloud.waiting_job()
    await cloud.round()
    await cloud.round(10.0)
    cloud.machine.shown_until, cloud.machine.ended_at = 0.0, 1.0
    await cloud.round(10.0)
    assert (await cloud.row())["status"] == "booting"
    await cloud.round(SETTLE_S + 1.0)
    row = await cloud.row()
    assert (row["status"], row["why"], row["cost_micros"] > 0) == ("gone", "vanished", True)


async def test_a_price_that_rises_above_the_pools_limit_ends_what_boots(cloud: Cloud) -> None:
    await cloud.save_pool(max_price_micros=2_000_000)
    await cloud.waiting_job()
    await cloud.round()
    cloud.machine.dollars = 2.5
    await cloud.round(1.0)
    row = await cloud.row()
    assert (row["status"], row["why"], row["hourly_micros"]) == ("destroying", "price", 2_500_000)
    await cloud.running.http.put("/api/pools/cloud", json=await changed_pool(cloud, enabled=False))
    await cloud.until_gone()


async def test_a_key_that_is_refused_is_the_pools_trouble_and_nothing_is_given_up(cloud: Cloud) -> None:
    await cloud.save_pool()
    await cloud.waiting_job()
    await cloud.round()
    cloud.vendor.faults["list"].extend(["401"] * 3)
    for _ in range(3):
        await cloud.round(SETTLE_S)
    assert (await cloud.row())["status"] == "booting"
    (pool,) = (await cloud.running.get("/api/pools"))["pools"]
    assert "refuses the key" in pool["trouble"]
    assert KEY not in str(pool)


async def changed_pool(cloud: Cloud, **request: Any) -> dict[str, Any]:
    pool = (await cloud.running.get("/api/pools/cloud"))["request"]
    return {**pool, **request}
