"""`pools`, `offers` and `jobs submit --target cloud`, against an orchestrator in this process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.orchestrator.machines.provisioner import Provisioner
from tests.cli.conftest import Result, Run
from tests.http.api_kit import ADMIN, GPU_CONFIG, Running, orchestrator

Asked = Any


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with orchestrator() as made:
        made.deps.provisioner = Provisioner(made.fleet, Path("/nonexistent"), {}, {})
        yield made
        await made.deps.provisioner.stop()


@pytest.fixture
def said(run: Run, running: Running, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setenv("SIMPLETUNER_URL", running.listening.url)
    monkeypatch.setenv("SIMPLETUNER_API_TOKEN", ADMIN)

    async def ask(*words: str) -> Result:
        return await asyncio.to_thread(run, *words)

    return ask


async def test_limits_are_amounts_of_the_fleets_money_and_can_be_lifted(
    said: Asked, running: Running
) -> None:
    pool = ("pools", "set", "p", "--provider", "process", "--max-price", "1.89", "--max-daily", "40")
    made = await said(*pool)
    assert made.code == 0, made.err
    request = (await running.get("/api/pools/p"))["request"]
    assert (request["max_price_micros"], request["max_daily_micros"]) == (1_890_000, 40_000_000)
    shown = await said("pools", "get", "p")
    assert "1.89 USD" in shown.out
    assert "40.00 USD" in shown.out
    assert (await said("pools", "set", "p", "--max-price", "none")).code == 0
    assert (await running.get("/api/pools/p"))["request"]["max_price_micros"] is None
    assert (await said("pools", "set", "p", "--max-price", "dear")).code != 0


async def test_a_pool_is_kept_for_teams_and_people_and_given_back_to_everybody(
    said: Asked, running: Running
) -> None:
    await running.post("/api/teams", {"name": "Vision"})
    pool = ("pools", "set", "p")
    made = await said(*pool, "--provider", "process", "--team", "Vision")
    assert made.code == 0, made.err
    assert (await said(*pool, "--max-machines", "2")).code == 0
    assert (await running.get("/api/pools/p"))["teams"] == ["Vision"], "what is not named stays"
    assert "Vision" in (await said("pools", "get", "p")).out
    unclear = await said(*pool, "--everybody", "--team", "Vision")
    assert unclear.code == 2
    assert (await said(*pool, "--everybody")).code == 0
    assert (await running.get("/api/pools/p"))["teams"] == []


async def test_offers_of_all_pools_come_cheapest_first_and_a_pool_is_checked(said: Asked) -> None:
    for name, price in (("dear", "3"), ("cheap", "0.5")):
        settings = ("--setting", "gpus=1", "--setting", "gpu_name=A100", "--setting", f"price={price}")
        assert (await said("pools", "set", name, "--provider", "process", *settings)).code == 0
    offers = (await said("offers", "--json")).json["items"]
    assert [(one["pool"], one["price"]) for one in offers] == [("cheap", "0.50 USD"), ("dear", "3.00 USD")]
    assert [one["pool"] for one in (await said("offers", "--pool", "dear", "--json")).json["items"]] == [
        "dear"
    ]
    assert [one["pool"] for one in (await said("offers", "dear", "--json")).json["items"]] == ["dear"]
    checked = await said("pools", "check", "cheap")
    assert (checked.code, "0.50 USD" in checked.out) == (0, True)


async def test_a_job_for_the_cloud_waits_for_machines_of_pools_at_its_price(
    said: Asked, running: Running
) -> None:
    await running.save_config("sdxl", GPU_CONFIG)
    words = ("jobs", "submit", "sdxl", "--target", "cloud", "--max-price", "2.50", "--json")
    submitted = await said(*words)
    assert submitted.code == 0, submitted.err
    requires = (await running.job(submitted.json["job_id"]))["requires"]
    assert (requires["worker_labels"], requires["max_price_micros"]) == ({"pool": "*"}, 2_500_000)
