"""People wait for people: first come, first served, and nobody has the whole gate."""

import asyncio

import pytest

from simpletuner_fleet.core.errors import TooManyRequests
from simpletuner_fleet.engine import gate as gates
from simpletuner_fleet.engine.gate import WAITING_PER_CALLER, Gate


async def test_one_caller_never_has_all_of_it() -> None:
    gate = Gate(at_once=3, per_caller=2)
    assert [gate.enter_at_once("a") for _ in range(3)] == [True, True, False]
    assert gate.enter_at_once("b")
    assert not gate.enter_at_once("c")
    gate.leave("a")
    assert gate.enter_at_once("c")


async def test_whoever_waits_comes_in_when_there_is_room_in_the_order_they_came() -> None:
    gate = Gate(at_once=1, per_caller=1)
    assert gate.enter_at_once("a")
    order: list[str] = []

    async def come(name: str) -> None:
        await gate.enter(name)
        order.append(name)
        gate.leave(name)

    waiting = [asyncio.create_task(come(name)) for name in ("b", "c", "b")]
    await asyncio.sleep(0)
    gate.leave("a")
    await asyncio.gather(*waiting)
    assert order == ["b", "c", "b"]
    assert gate.enter_at_once("a")


async def test_whoever_gives_up_leaves_no_hole() -> None:
    gate = Gate(at_once=1, per_caller=1)
    assert gate.enter_at_once("a")
    waiting = asyncio.create_task(gate.enter("b"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    gate.leave("a")
    assert gate.enter_at_once("c")
    late = asyncio.create_task(gate.enter("d"))
    await asyncio.sleep(0)
    gate.leave("c")
    late.cancel()  # just as its turn has come
    await asyncio.wait([late])
    assert gate.enter_at_once("e")


async def test_a_turn_that_comes_as_patience_ends_is_taken_and_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gates, "PATIENCE_S", 0.0)  # It ends in the next turn of the loop.
    gate = Gate(at_once=1, per_caller=1)
    assert gate.enter_at_once("a")
    waiting = asyncio.create_task(gate.enter("b"))
    asyncio.get_running_loop().call_soon(gate.leave, "a")
    await waiting
    assert not gate.enter_at_once("c")
    gate.leave("b")
    assert gate.enter_at_once("c")


async def test_a_turn_that_comes_as_patience_ends_and_the_call_is_cancelled_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gates, "PATIENCE_S", 0.0)
    gate = Gate(at_once=1, per_caller=1)
    assert gate.enter_at_once("a")
    waiting = asyncio.create_task(gate.enter("b"))
    asyncio.get_running_loop().call_soon(gate.leave, "a")
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert gate.enter_at_once("c")


async def test_nobody_waits_endlessly_or_endlessly_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "PATIENCE_S", 0.01)
    gate = Gate(at_once=1, per_caller=1)
    assert gate.enter_at_once("a")
    with pytest.raises(TooManyRequests):
        await gate.enter("b")
    monkeypatch.setattr(gates, "PATIENCE_S", 5.0)
    waiting = [asyncio.create_task(gate.enter("b")) for _ in range(WAITING_PER_CALLER)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        await gate.enter("b")
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
