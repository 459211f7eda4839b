"""Locks by name."""

import asyncio

from simpletuner_fleet.keyed_locks import KeyedLocks


async def test_who_holds_a_name_is_alone_with_it_and_others_are_free() -> None:
    locks, order = KeyedLocks(), []

    async def work(name: str, label: str) -> None:
        async with locks.holding(name):
            order.append(f"{label} begins")
            await asyncio.sleep(0)
            order.append(f"{label} ends")

    await asyncio.gather(work("a", "first"), work("a", "second"), work("b", "other"))
    assert order.index("first ends") < order.index("second begins")
    assert order.index("other begins") < order.index("first ends")
    assert len(locks) == 0, "a name that nobody holds has no lock"


async def test_a_failure_lets_go_of_the_name() -> None:
    locks = KeyedLocks()
    for _ in range(2):
        try:
            async with locks.holding("a"):
                raise ValueError
        except ValueError:
            assert len(locks) == 0
