"""A provider that takes long to make machines: what waits for it is neither forgotten, nor asked for twice, nor in vain."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from simpletuner_fleet.core.provisioning.machine import Machine
from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.core.provisioning.pool import MachinePool
from simpletuner_fleet.orchestrator.machines.under_way import CALLS_AT_ONCE, CallsUnderWay, LooksUnderWay
from simpletuner_fleet.providers.contract import CreatedMachine, MachineOrder, ProviderRefused
from tests.core.provisioning.provisioning_kit import an_offer
from tests.delivery.receivers import until
from tests.http.api_kit import Running, orchestrator
from tests.orchestrator.machines.cloud_kit import round_of, with_provisioner

MORE = CALLS_AT_ONCE + 4
SETTLE_S = 30.0
CONFIG = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 1}}


class Shelf:
    """A provider of another package, which makes machines when it is let."""

    settle_s = SETTLE_S
    sweep_s = 5.0

    def __init__(self) -> None:
        self.lets = asyncio.Event()
        self.shows = asyncio.Event()
        self.shows.set()
        self.asked: list[MachineOrder] = []
        self.made: list[str] = []
        self.offered: list[MachineOffer] = [an_offer()]
        self.refuses = ""

    async def offers(self) -> list[MachineOffer]:
        if self.refuses:
            raise ProviderRefused(self.refuses)
        return self.offered

    async def create(self, order: MachineOrder) -> CreatedMachine:
        self.asked.append(order)
        await self.lets.wait()
        self.made.append(order.name)
        return CreatedMachine(provider_id=f"p_{order.name}")

    async def machines(self) -> list[ListedMachine]:
        await self.shows.wait()
        return [ListedMachine(provider_id=f"p_{name}", name=name) for name in self.made]

    async def destroy(self, provider_id: str) -> None:
        self.made.remove(provider_id.removeprefix("p_"))

    async def boot_log(self, provider_id: str) -> str:
        return ""


@pytest.fixture
async def running(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setattr(
        "simpletuner_fleet.orchestrator.machines.provisioner.make_provider", lambda surroundings: shelf
    )
    async with orchestrator() as made, with_provisioner(made):
        assert made.deps.provisioner is not None
        made.deps.provisioner._calls = CallsUnderWay(patience_s=0.05)
        answer = await made.http.put(
            "/api/pools/shelf", json={"provider": "process", "trainers": ["command"], "max_machines": MORE}
        )
        assert answer.status_code == 200, answer.text
        yield made


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


async def jobs(running: Running, count: int) -> list[str]:
    return [str((await running.submit(config=CONFIG))["job_id"]) for _ in range(count)]


async def rows(running: Running) -> list[Machine]:
    return await running.fleet.read(lambda view: view.machines_since(0.0))


async def pools(running: Running) -> list[MachinePool]:
    return await running.fleet.read(lambda view: view.pools())


async def states(running: Running) -> set[str]:
    return {str(machine.state) for machine in await rows(running)}


async def test_machines_that_wait_for_their_turn_are_asked_for_once(running: Running, shelf: Shelf) -> None:
    await jobs(running, MORE)
    for _ in range(4):
        await round_of(running, 1.0)
    assert len(shelf.asked) == CALLS_AT_ONCE
    assert len(await rows(running)) == MORE, "none was given up to be wanted anew"
    shelf.lets.set()
    await until(lambda: len(shelf.made) == MORE)
    await round_of(running, 1.0)
    assert len({order.name for order in shelf.asked}) == len(shelf.asked) == MORE
    assert await states(running) == {"booting"}


async def test_machines_that_wait_for_their_turn_and_are_not_needed_any_more_are_never_asked_for(
    running: Running, shelf: Shelf
) -> None:
    waiting = await jobs(running, MORE)
    await round_of(running, 1.0)
    for job_id in waiting[1:]:
        await running.post(f"/api/jobs/{job_id}/cancel", {})
    await round_of(running, 1.0)
    ended = [machine for machine in await rows(running) if machine.gone_at is not None]
    assert {(machine.why, machine.asked_at) for machine in ended} == {("not_needed", None)}
    assert len(ended) == MORE - CALLS_AT_ONCE
    shelf.lets.set()
    await until(lambda: len(shelf.made) == CALLS_AT_ONCE)
    await round_of(running, 1.0)
    assert len(shelf.asked) == CALLS_AT_ONCE


async def test_what_there_is_only_one_of_is_not_asked_for_again_while_it_is_being_asked_for(
    running: Running, shelf: Shelf
) -> None:
    shelf.offered = [an_offer("host-1", single=True), an_offer("host-2", single=True)]
    await jobs(running, 1)
    await round_of(running, 1.0)
    await jobs(running, 1)
    await round_of(running, 1.0)
    assert [order.offer.id for order in shelf.asked] == ["host-1", "host-2"]


async def test_a_machine_that_is_being_asked_for_is_not_missed(running: Running, shelf: Shelf) -> None:
    (job_id,) = await jobs(running, 1)
    for _ in range(3):
        await round_of(running, SETTLE_S)
    assert await states(running) == {"asked"}
    await running.post(f"/api/jobs/{job_id}/cancel", {})
    assert (await running.http.delete("/api/pools/shelf")).is_success
    for _ in range(4):
        await round_of(running, SETTLE_S)
    assert await states(running) == {"destroying"}
    shelf.lets.set()
    await until(lambda: len(shelf.made) == 1)
    for _ in range(4):
        await round_of(running, SETTLE_S)
    assert shelf.made == [], "its pool goes only when it is gone"
    assert await running.fleet.read(lambda view: view.pools()) == []


async def test_a_machine_is_ended_at_once_however_many_wait_to_be_made(
    running: Running, shelf: Shelf
) -> None:
    shelf.lets.set()
    (job_id,) = await jobs(running, 1)
    await round_of(running, 1.0)
    (machine,) = await rows(running)
    shelf.lets.clear()
    await running.post(f"/api/jobs/{job_id}/cancel", {})
    await jobs(running, MORE)
    await round_of(running, 1.0)
    assert len(shelf.asked) == 1 + CALLS_AT_ONCE
    await running.post(f"/api/machines/{machine.id}/end", {"now": True})
    await round_of(running, 1.0)
    await until(lambda: shelf.made == [])


async def test_a_round_goes_on_while_a_slow_provider_is_looked_at_and_what_is_known_of_its_pool_stands(
    running: Running, shelf: Shelf
) -> None:
    assert running.deps.provisioner is not None
    running.deps.provisioner._looks = LooksUnderWay(patience_s=0.05)
    await jobs(running, MORE)
    await round_of(running, 1.0)
    known = await rows(running), await pools(running)
    shelf.shows.clear()
    async with asyncio.timeout(10):
        for _ in range(2):
            await round_of(running, 1.0)
            assert (await rows(running), await pools(running)) == known
    shelf.shows.set()
    shelf.lets.set()
    await until(lambda: len(shelf.made) == MORE)
    for _ in range(2):
        await round_of(running, 1.0)
    assert await states(running) == {"booting"}


async def why_waits(running: Running, job_id: str) -> tuple[str, str]:
    explained = await running.get(f"/api/jobs/{job_id}/explain")
    return str(explained["code"]), str(explained["params"].get("trouble", ""))


async def test_a_job_that_comes_while_a_provider_is_looked_at_is_not_told_that_nothing_is_offered(
    running: Running, shelf: Shelf
) -> None:
    assert running.deps.provisioner is not None
    shelf.shows.clear()
    looking = asyncio.create_task(round_of(running, 1.0))
    await until(lambda: bool(running.deps.provisioner and running.deps.provisioner._looks._looks))
    (job_id,) = await jobs(running, 1)
    shelf.shows.set()
    await looking
    assert await why_waits(running, job_id) == ("ASKING_FOR_MACHINE", "")
    await round_of(running, 1.0)
    assert await why_waits(running, job_id) == ("WAITING_FOR_MACHINE", "")


async def test_a_provider_that_does_not_tell_what_it_offers_is_what_the_job_waits_for(
    running: Running, shelf: Shelf
) -> None:
    shelf.refuses = "no money is left"
    (job_id,) = await jobs(running, 1)
    await round_of(running, 1.0)
    assert await why_waits(running, job_id) == ("ASKING_FOR_MACHINE", "no money is left")
    shelf.refuses, shelf.offered = "", []
    await round_of(running, 1.0)
    assert (await why_waits(running, job_id))[0] == "NO_MACHINE_OFFERED"
