"""What is asked of a slow provider delays neither the rounds nor the machines of another."""

import asyncio

import pytest

from simpletuner_fleet.core.errors import NotLeader
from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.core.provisioning.offers import ProviderSnapshot
from simpletuner_fleet.core.provisioning.pool import MachinePool, PoolRequest
from simpletuner_fleet.orchestrator.machines.under_way import NO_ANSWER, CallsUnderWay, LooksUnderWay

SNAPSHOT = ProviderSnapshot(at=1.0, settle_s=60.0, machines=(), offers=(), trouble="")


def pool(name: str, boot_s: float = 60.0) -> MachinePool:
    return MachinePool(
        name=name,
        request=PoolRequest(provider="process", trainers=("command",), boot_s=boot_s),
        created_at=1.0,
        created_by="t_1",
    )


def machine(machine_id: str, of_pool: str = "quick") -> Machine:
    return Machine(
        id=machine_id, pool=of_pool, name=machine_id, state=MachineState.DESTROYING, created_at=1.0
    )


class Providers:
    """One answers at once, the other when it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.lets = asyncio.Event()
        self.patience_s = 0.02

    async def look(self, of: MachinePool) -> ProviderSnapshot | str:
        self.asked.append(of.name)
        if of.name == "slow":
            try:
                async with asyncio.timeout(self.patience_s):
                    await self.lets.wait()
            except TimeoutError:
                return NO_ANSWER
        return SNAPSHOT


async def test_a_provider_that_gave_no_answer_is_waited_for_once() -> None:
    looks, providers, pools = LooksUnderWay(), Providers(), [pool("quick"), pool("slow")]
    first = await looks.answers(pools, providers.look)
    assert first == {"quick": SNAPSHOT, "slow": NO_ANSWER}

    providers.patience_s = 60.0
    for _ in range(3):
        async with asyncio.timeout(5):
            assert await looks.answers(pools, providers.look) == {"quick": SNAPSHOT}
    assert providers.asked.count("slow") == 2, "one look at a time"

    providers.lets.set()
    while "slow" not in (answers := await looks.answers(pools, providers.look)):
        pass
    assert answers == {"quick": SNAPSHOT, "slow": SNAPSHOT}
    assert await looks.answers(pools, providers.look) == answers, "it is quick again"
    await looks.stop()


async def test_a_provider_that_answers_and_is_slow_each_time_lengthens_one_round() -> None:
    looks, providers = LooksUnderWay(patience_s=0.05), Providers()
    pools = [pool("quick"), pool("slow")]
    providers.patience_s = 60.0
    assert await looks.answers(pools, providers.look) == {"quick": SNAPSHOT}
    providers.lets.set()
    while "slow" not in (answers := await looks.answers(pools, providers.look)):
        pass
    assert answers == {"quick": SNAPSHOT, "slow": SNAPSHOT}, "what it answered late counts"
    providers.lets.clear()
    looks._patience_s = 60.0
    async with asyncio.timeout(5):
        assert await looks.answers(pools, providers.look) == {"quick": SNAPSHOT}
    await looks.stop()


async def test_what_nobody_answers_for_too_long_is_said_to_have_no_answer() -> None:
    looks, providers = LooksUnderWay(patience_s=0.05, longest_look_s=0.05), Providers()
    providers.patience_s = 60.0
    for _ in range(2):
        assert await looks.answers([pool("slow")], providers.look) == {"slow": NO_ANSWER}
    await looks.stop()


async def test_what_a_pool_was_before_it_was_changed_is_not_looked_at_any_more() -> None:
    looks, providers = LooksUnderWay(), Providers()
    await looks.answers([pool("slow")], providers.look)
    providers.patience_s = 60.0
    assert await looks.answers([pool("slow")], providers.look) == {}
    assert await looks.answers([], providers.look) == {}
    providers.lets.set()
    assert await looks.answers([pool("slow", boot_s=90.0)], providers.look) == {"slow": SNAPSHOT}
    await looks.stop()


async def test_a_call_that_takes_long_keeps_no_other_from_being_made() -> None:
    calls, lets, made = CallsUnderWay(patience_s=0.05), asyncio.Event(), list[str]()

    async def hangs(one: Machine) -> None:
        made.append(one.id)
        await lets.wait()

    async def works(one: Machine) -> None:
        made.append(one.id)

    for number in range(20):
        calls.begin(machine(f"m_{number}", "slow"), hangs)
    calls.begin(machine("m_quick"), works)
    async with asyncio.timeout(5):
        await calls.settle()
    assert "m_quick" in made
    assert made.count("m_0") == 1
    calls.begin(machine("m_0", "slow"), hangs)
    async with asyncio.timeout(5):
        await calls.settle()
    assert made.count("m_0") == 1, "its call is still under way"
    await calls.stop()


async def test_a_call_that_fails_is_said_and_who_does_not_lead_any_more_hears_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = CallsUnderWay()

    async def fails(one: Machine) -> None:
        raise ValueError("odd")

    async def not_leading(one: Machine) -> None:
        raise NotLeader("Another one leads.")

    calls.begin(machine("m_1"), fails)
    await calls.settle()
    assert "a machine could not be looked after" in caplog.text
    calls.begin(machine("m_1"), not_leading)
    with pytest.raises(NotLeader):
        await calls.settle()
    await calls.settle()


async def test_code_that_cannot_be_stopped_holds_up_neither_a_round_nor_the_end() -> None:
    looks, lets = LooksUnderWay(patience_s=0.05, longest_look_s=0.05), asyncio.Event()

    async def look(of: MachinePool) -> ProviderSnapshot | str:
        while of.name == "stubborn" and not lets.is_set():
            try:
                await lets.wait()
            except asyncio.CancelledError:
                continue
        return SNAPSHOT

    pools = [pool("quick"), pool("stubborn")]
    async with asyncio.timeout(5):
        for _ in range(2):
            assert await looks.answers(pools, look) == {"quick": SNAPSHOT, "stubborn": NO_ANSWER}
        await looks.stop(within_s=0.05)
    lets.set()
