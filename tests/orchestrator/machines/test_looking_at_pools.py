"""Pools that are looked at: a provider without offers, a name that is taken, and who hears of them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.orchestrator.machines.provisioner import Provisioner
from simpletuner_fleet.orchestrator.machines.rounds import take_snapshot
from simpletuner_fleet.providers.contract import CreatedMachine, MachineOrder, ProviderRefused
from simpletuner_fleet.store.sealing import SealedVault
from tests.http.api_kit import Running, orchestrator, read_events

POOL: dict[str, Any] = {"provider": "process", "trainers": ["command"]}


class SoldOut:
    """Has a machine of ours, and answers no question about offers."""

    settle_s = 60.0
    sweep_s = 1.0

    async def offers(self) -> list[MachineOffer]:
        raise ProviderRefused("invalid partition")

    async def create(self, order: MachineOrder) -> CreatedMachine:
        raise ProviderRefused("invalid partition")

    async def machines(self) -> list[ListedMachine]:
        return [ListedMachine(provider_id="p1", name="stf-f1-m1")]

    async def destroy(self, provider_id: str) -> None: ...

    async def boot_log(self, provider_id: str) -> str:
        return ""


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with orchestrator(vault=SealedVault(lambda: b"k" * 32, lambda: b"k" * 32)) as made:
        made.deps.provisioner = Provisioner(made.fleet, Path("/nonexistent"), {}, {})
        yield made
        await made.deps.provisioner.stop()


async def test_machines_are_seen_also_where_offers_cannot_be_had() -> None:
    snapshot = await take_snapshot(SoldOut(), 1.0, with_offers=True)
    assert [machine.provider_id for machine in snapshot.machines] == ["p1"]
    assert (snapshot.offers, snapshot.trouble) == ((), "invalid partition")
    assert (await take_snapshot(SoldOut(), 1.0, with_offers=False)).trouble == ""


async def test_a_new_pool_does_not_write_over_one_of_its_name(running: Running) -> None:
    made = await running.http.put("/api/pools/p?new=true", json=POOL)
    assert made.status_code == 200, made.text
    again = await running.http.put("/api/pools/p?new=true", json={**POOL, "max_machines": 9})
    assert (again.status_code, again.json()["code"]) == (409, "name_taken")
    changed = await running.http.put("/api/pools/p", json={**POOL, "max_machines": 7})
    assert changed.json()["request"]["max_machines"] == 7


async def test_a_provider_is_made_anew_for_another_time_to_boot_and_forgotten_with_its_pool(
    running: Running,
) -> None:
    provisioner = running.deps.provisioner
    assert provisioner is not None
    made = []
    for boot_s in (60, 60, 90):
        saved = await running.http.put("/api/pools/p", json={**POOL, "boot_s": boot_s})
        assert saved.status_code == 200, saved.text
        await provisioner.round_once(await running.fleet.read(lambda view: view.pools()))
        made.append(provisioner._providers["p"][1])
    assert made[0] is made[1] is not made[2], "Kubernetes ends a Job of its own accord, and knows this time"
    await provisioner.round_once([])
    assert provisioner._providers == {}


async def test_who_may_not_see_pools_hears_nothing_of_them(running: Running) -> None:
    jobs_only, both = await running.token("jobs.read"), await running.token("jobs.read", "machines.read")
    async with running.as_user(jobs_only) as outsider, running.as_user(both) as insider:
        streams = [await read_events(one, "/api/events") for one in (outsider, insider)]
        await running.http.put("/api/pools/p", json=POOL)
        await running.save_config("after", {"trainer": "command", "settings": {"command": ["true"]}})
        await running.submit(config_name="after")
        for stream in streams:
            await stream.events.next("ready")
        assert (await streams[1].events.next("pool"))["id"] == "p"
        await streams[0].events.next("job")
        assert streams[0].events.of_kind("pool") == []
        for stream in streams:
            await stream.close()


PRICED: dict[str, Any] = {**POOL, "settings": {"gpus": "2", "gpu_name": "A100", "price": "2.50"}}


async def test_offers_are_seen_before_a_pool_is_saved_and_leave_nothing_behind(running: Running) -> None:
    answer = await running.http.post("/api/pools/offers", json=PRICED)
    assert answer.status_code == 200, answer.text
    (offer,) = answer.json()["offers"]
    assert (offer["hourly_micros"], offer["price"], offer["gpus"]) == (2_500_000, "2.50 USD", 2)
    refused = await running.http.post("/api/pools/offers", json={**POOL, "settings": {"gpu": "1"}})
    assert (refused.status_code, "no setting gpu" in refused.json()["detail"]) == (422, True)
    assert (await running.get("/api/pools"))["pools"] == []


async def test_a_pools_key_is_tried_and_the_answer_says_what_it_met(running: Running) -> None:
    await running.http.put("/api/pools/p", json=PRICED)
    good = (await running.http.post("/api/pools/p/check")).json()
    assert (good["ok"], good["offers"], good["eligible"], good["cheapest_micros"]) == (True, 1, 1, 2_500_000)
    assert (await running.http.post("/api/pools/none/check")).status_code == 404
    stored = await running.http.put("/api/secrets/k", json={"value": "key-0123456789"})
    assert stored.status_code == 200, stored.text
    nobody = {"image": "x", "api_url": "http://127.0.0.1:9"}
    saved = await running.http.put(
        "/api/pools/q", json={**POOL, "provider": "vast", "secret": "k", "settings": nobody}
    )
    assert saved.status_code == 200, saved.text
    bad = (await running.http.post("/api/pools/q/check")).json()
    assert (bad["ok"], "cannot be reached" in bad["trouble"]) == (False, True)


async def test_who_could_not_store_a_key_may_not_lead_it_elsewhere(running: Running) -> None:
    token = await running.token("admin.machines", "machines.read")
    elsewhere = {**POOL, "provider": "vast", "settings": {"image": "x", "api_url": "https://example.org"}}
    async with running.as_user(token) as someone:
        for answer in (
            await someone.put("/api/pools/p", json=elsewhere),
            await someone.post("/api/pools/offers", json=elsewhere),
        ):
            assert (answer.status_code, answer.json()["permission"]) == (403, "secrets.write")
        assert (await someone.put("/api/pools/p", json=POOL)).status_code == 200
