"""Pools and machines by the API: what is checked, who may join with which token, and what people are told."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.core.restoring import HANDS_OFF
from simpletuner_fleet.orchestrator.machines.calls import ask_once, destroy_once
from simpletuner_fleet.orchestrator.machines.provisioner import Provisioner
from simpletuner_fleet.orchestrator.machines.rounds import ProviderSnapshots, decide_once, take_snapshot
from simpletuner_fleet.providers.contract import CreatedMachine, MachineOrder, ProviderRefused, ProviderUnsure
from simpletuner_fleet.storage.ownership import FLEET_ID
from tests.http.api_kit import Running, orchestrator

POOL = {"provider": "process", "trainers": ["command"], "max_machines": 1, "max_daily_micros": 100_000_000}
HOME = "h_1"


class OneShelf:
    """A provider with one offer; what it does next is said by the test."""

    settle_s = 60.0
    sweep_s = 1.0

    def __init__(self) -> None:
        self.there: dict[str, str] = {}
        self.orders: list[MachineOrder] = []
        self.fails: Exception | None = None
        self.loses_answers = False
        self.ended = False

    async def offers(self) -> list[MachineOffer]:
        return [MachineOffer(id="shelf", hourly_micros=2_000_000, gpu_name="A100", gpus=1, vram_gb=80.0)]

    async def create(self, order: MachineOrder) -> CreatedMachine:
        self.orders.append(order)
        if self.fails:
            raise self.fails
        self.there[f"p{len(self.orders)}"] = order.name
        if self.loses_answers:
            raise ProviderUnsure("no answer")
        return CreatedMachine(provider_id=f"p{len(self.orders)}")

    async def machines(self) -> list[ListedMachine]:
        return [
            ListedMachine(provider_id=id, name=name, runs=not self.ended) for id, name in self.there.items()
        ]

    async def destroy(self, provider_id: str) -> None:
        if self.fails:
            raise self.fails
        self.there.pop(provider_id, None)

    async def boot_log(self, provider_id: str) -> str:
        return "it began to boot"


class Rounds:
    """The provisioner's rounds, one at a time, on a clock that is turned."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.shelf = OneShelf()

    async def once(self, after_s: float = 0.0) -> None:
        self.running.clock.at += after_s
        fleet = self.running.fleet
        snapshot = await take_snapshot(self.shelf, fleet.clock.now(), with_offers=True)
        calls = await decide_once(fleet, ProviderSnapshots(snapshots={"shelf": snapshot}, troubles={}))
        for machine in calls.destroy:
            await destroy_once(fleet, self.shelf, machine)
        pool = await fleet.read(lambda view: view.pool("shelf"))
        for machine_id in calls.ask:
            assert pool is not None
            await ask_once(fleet, self.shelf, pool, machine_id, {"SIMPLETUNER_ORCHESTRATOR_URL": "http://x"})

    async def machine(self) -> Machine:
        rows = await self.running.fleet.read(lambda view: view.machines_since(0.0))
        return rows[-1]

    @property
    def token(self) -> str:
        return self.shelf.orders[-1].environment["SIMPLETUNER_WORKER_TOKEN"]


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with orchestrator() as made:
        provisioner = Provisioner(made.fleet, Path("/nonexistent"), {}, {})
        made.deps.provisioner = provisioner
        await made.fleet.act(lambda transaction: transaction.tx.put_setting(FLEET_ID, "f_1"))
        made.clock.at += 1000.0
        yield made
        await provisioner.stop()


@pytest.fixture
async def rounds(running: Running) -> Rounds:
    answer = await running.http.put("/api/pools/shelf", json=POOL)
    assert answer.status_code == 200, answer.text
    return Rounds(running)


async def join(running: Running, token: str, home: str = HOME) -> tuple[int, Any]:
    answer = await running.http.post(
        "/api/workers/join", json={"home": home}, headers={"x-worker-token": token}
    )
    return answer.status_code, answer.json()


async def waiting_job(running: Running) -> str:
    config = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 1}}
    return str((await running.submit(config=config))["job_id"])


async def test_a_pool_is_checked_saved_shown_and_noted(running: Running) -> None:
    async def refused(**request: Any) -> str:
        answer = await running.http.put("/api/pools/p", json={**POOL, **request})
        assert answer.status_code == 422, answer.text
        return str(answer.json()["detail"])

    assert "min_machines must be between 0 and 1" in await refused(min_machines=2)
    assert "boot_s" in await refused(boot_s=1)
    assert "no setting gpu" in await refused(settings={"gpu": "1"})
    assert "no provider 'moon'" in await refused(provider="moon")
    assert "no secret 'key'" in await refused(secret="key")
    assert (await running.get("/api/pools"))["pools"] == []
    answer = await running.http.put("/api/pools/p", json=POOL)
    assert answer.json()["request"]["max_daily_micros"] == 100_000_000
    (shown,) = (await running.get("/api/pools"))["pools"]
    assert (shown["name"], shown["machines"], shown["today_micros"], shown["currency"]) == ("p", 0, 0, "USD")
    assert (await running.http.delete("/api/pools/p")).status_code == 200
    assert (await running.http.get("/api/pools/p")).status_code == 404
    kinds = [one["event_type"] for one in (await running.get("/api/audit"))["entries"]]
    assert "pool.saved" in kinds
    assert "pool.deleted" in kinds


async def test_the_token_is_good_for_one_machine_once_and_not_for_ever(rounds: Rounds) -> None:
    running = rounds.running
    job_id = await waiting_job(running)
    await rounds.once()
    explained = await running.get(f"/api/jobs/{job_id}/explain")
    assert explained["code"] == "WAITING_FOR_MACHINE"
    assert explained["sentence"].startswith(
        "waiting for a machine of the pool shelf: process, 1 x A100 80 GB, 2.00 USD an hour, booting for 0 s"
    )
    assert (await join(running, "wt_nonsense"))[0] == 401
    assert (await join(running, tokens.make(tokens.JOIN, b"x" * 32)))[0] == 401
    status, first = await join(running, rounds.token)
    assert status == 200
    assert await join(running, rounds.token) == (200, first)
    assert (await join(running, rounds.token, "h_other"))[0] == 401
    assert rounds.shelf.orders[-1].environment["SIMPLETUNER_WORKER_PRICE"] == "2"
    worker = await running.get(f"/api/admin/workers/{first['worker_id']}")
    assert worker["labels"] == {"pool": "shelf"}
    register = {"home": HOME, "gpus": [], "trainers": ["command"], "incarnation": "i_1", "seq": 1}
    registered = await running.http.post(
        "/api/workers/register", json=register, headers={"x-worker-token": first["token"]}
    )
    assert registered.status_code == 200, registered.text
    assert (await join(running, rounds.token))[0] == 401
    assert (await rounds.machine()).state is MachineState.JOINED


async def test_a_token_that_is_late_is_refused_and_the_machine_destroyed_with_its_log(rounds: Rounds) -> None:
    running = rounds.running
    job_id = await waiting_job(running)
    await rounds.once()
    running.clock.at += 900.0
    assert (await join(running, rounds.token))[0] == 401
    await rounds.once()
    machine = await rounds.machine()
    assert (machine.state, machine.why, machine.boot_log) == (
        "destroying",
        "boot_deadline",
        "it began to boot",
    )
    assert rounds.shelf.there == {}
    await rounds.once(1.0)
    await rounds.once(61.0)
    gone = await running.get(f"/api/machines/{machine.id}")
    assert (gone["status"], gone["boot_log"]) == ("gone", "it began to boot")
    assert gone["cost_micros"] > 0
    assert (await running.get(f"/api/jobs/{job_id}/explain"))["code"] == "MACHINES_FAILED"


async def test_one_that_ended_before_it_joined_keeps_its_log_and_the_next_waits(rounds: Rounds) -> None:
    job_id = await waiting_job(rounds.running)
    await rounds.once()
    rounds.shelf.ended = True
    await rounds.once(1.0)
    machine = await rounds.machine()
    assert (machine.state, machine.why, machine.boot_log) == ("destroying", "left", "it began to boot")
    await rounds.once(1.0)
    await rounds.once(61.0)
    assert len(rounds.shelf.orders) == 1
    assert (await rounds.running.get(f"/api/jobs/{job_id}/explain"))["code"] == "MACHINES_FAILED"


async def test_a_lost_answer_makes_no_second_machine(rounds: Rounds) -> None:
    rounds.shelf.loses_answers = True
    await waiting_job(rounds.running)
    await rounds.once()
    assert (await rounds.machine()).state is MachineState.ASKED
    for _ in range(5):
        await rounds.once(30.0)
    assert len(rounds.shelf.orders) == 1
    machine = await rounds.machine()
    assert (machine.state, machine.provider_id) == (MachineState.BOOTING, "p1")


async def test_a_refusal_is_told_and_tried_again_after_a_pause(rounds: Rounds) -> None:
    rounds.shelf.fails = ProviderRefused("sold out")
    job_id = await waiting_job(rounds.running)
    await rounds.once()
    machine = await rounds.machine()
    assert (machine.state, machine.why, machine.detail) == ("gone", "refused", "sold out")
    await rounds.once(10.0)
    assert len(rounds.shelf.orders) == 1
    explained = await rounds.running.get(f"/api/jobs/{job_id}/explain")
    assert (explained["code"], explained["params"]["wait_s"]) == ("MACHINES_FAILED", 20.0)
    rounds.shelf.fails = None
    await rounds.once(21.0)
    assert len(rounds.shelf.orders) == 2


async def test_destroying_is_repeated_until_the_list_has_forgotten_it(rounds: Rounds) -> None:
    rounds.shelf.there["p9"] = "stf-f1-left"
    rounds.shelf.there["p8"] = "stf-f2-someone"
    rounds.shelf.fails = ProviderUnsure("status 503")
    await rounds.once()
    await rounds.once(5.0)
    machine = await rounds.machine()
    assert (machine.state, machine.why, machine.detail) == ("destroying", "stray", "status 503")
    assert len(await rounds.running.fleet.read(lambda view: view.machines_since(0.0))) == 1
    rounds.shelf.fails = None
    await rounds.once(5.0)
    assert rounds.shelf.there == {"p8": "stf-f2-someone"}
    await rounds.once(5.0)
    assert (await rounds.machine()).state is MachineState.DESTROYING
    await rounds.once(61.0)
    assert (await rounds.machine()).state is MachineState.GONE


async def test_a_deleted_pool_stays_until_a_machine_that_nobody_knew_of_is_destroyed(rounds: Rounds) -> None:
    """Such a machine shows in the very round in which the pool's last one is gone."""
    running, shelf = rounds.running, rounds.shelf
    await waiting_job(running)
    await rounds.once()
    assert (await running.http.delete("/api/pools/shelf")).status_code == 200
    for _ in range(2):
        await rounds.once(5.0)
    assert shelf.there == {}
    shelf.there["p9"], shelf.fails = "stf-f1-left", ProviderUnsure("status 503")
    await rounds.once(61.0)
    rows = await running.fleet.read(lambda view: view.machines_since(0.0))
    assert sorted((one.state, one.why == "stray") for one in rows) == [("destroying", True), ("gone", False)]
    assert await running.fleet.read(lambda view: view.pool("shelf")) is not None, (
        "by it the provider is asked"
    )
    shelf.fails = None
    await rounds.once(5.0)
    assert shelf.there == {}
    for after_s in (5.0, 61.0):
        await rounds.once(after_s)
    assert await running.fleet.read(lambda view: view.pool("shelf")) is None


async def test_a_ceiling_is_told_with_what_it_would_cost(rounds: Rounds) -> None:
    running = rounds.running
    changed = await running.http.put("/api/pools/shelf", json={**POOL, "max_price_micros": 1_500_000})
    assert changed.status_code == 200
    job_id = await waiting_job(running)
    await rounds.once()
    explained = await running.get(f"/api/jobs/{job_id}/explain")
    assert (explained["code"], explained["params"]["ceiling"], explained["params"]["price"]) == (
        "MACHINE_CEILING",
        "max_price",
        "2.00 USD",
    )
    assert rounds.shelf.orders == []


async def test_after_a_restore_nothing_is_touched_until_somebody_says_so(rounds: Rounds) -> None:
    running = rounds.running
    rounds.shelf.there["p9"] = "stf-f1-ofthecopy"
    await running.fleet.act(lambda transaction: transaction.tx.put_setting(HANDS_OFF, "1"))
    await waiting_job(running)
    await rounds.once()
    assert rounds.shelf.there == {"p9": "stf-f1-ofthecopy"}
    assert rounds.shelf.orders == []
    assert (await running.get("/api/pools"))["hands_off"] is True
    await running.post("/api/pools/take-in-hand")
    await rounds.once()
    assert (await running.get("/api/pools"))["hands_off"] is False
    assert rounds.shelf.there == {"p1": rounds.shelf.orders[0].name}


async def test_without_a_pool_the_loop_sleeps(running: Running) -> None:
    provisioner = running.deps.provisioner
    assert provisioner is not None
    reads = 0
    read = running.fleet.store.read

    async def counted(look: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(look)

    running.fleet.store.read = counted  # type: ignore[method-assign]
    provisioner.start()

    await asyncio.sleep(0.5)
    assert reads == 1
