"""One rule for whatever an attempt sends: when it is tried again, and when it is given up."""

import asyncio
import contextlib
import errno
from collections.abc import Callable

import pytest

from simpletuner_fleet.agent.ship.courier import (
    Courier,
    Failure,
    NothingTaken,
    RetryRule,
    SendersByAttempt,
    Sent,
    Unreadable,
)
from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.errors import Refused, TokenRejected, Unreachable
from simpletuner_fleet.agent.wire.hearings import Hearings
from simpletuner_fleet.core.jobs.fencing import Turn
from tests.http.api_kit import until

AWAY = Unreachable(OSError("no route"), refused=False, answered=False)
NONSENSE = Unreachable(ValueError("not JSON"), refused=False)
BUSY = Refused(503, "overloaded", "try later")
REFUSED = Refused(422, "invalid", "never")
STALE = Refused(409, "stale_attempt", "old news")
MISSING = Refused(409, "objects_missing", "some are not here")
NO_TOKEN = TokenRejected(401, "invalid_token", "rotated")
TURN = Turn("j_1", 3)
SOON_S = 5.0


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("failure", [AWAY, NONSENSE, NO_TOKEN])
def test_who_is_away_is_waited_for_without_end(failure: Failure, ended: bool) -> None:
    assert not RetryRule(patience_s=60.0).gives_up(failure, ended=ended, troubled_s=1e9)


@pytest.mark.parametrize("failure", [BUSY, NothingTaken("no more"), Unreadable("too many open files")])
def test_who_takes_nothing_is_waited_for_while_the_trainer_runs_and_then_for_a_while(
    failure: Failure,
) -> None:
    rule = RetryRule(patience_s=60.0)
    assert not rule.gives_up(failure, ended=False, troubled_s=1e9)
    assert not rule.gives_up(failure, ended=True, troubled_s=60.0)
    assert rule.gives_up(failure, ended=True, troubled_s=60.1)


@pytest.mark.parametrize("failure", [REFUSED, STALE, MISSING])
def test_what_is_refused_for_good_is_given_up_at_once(failure: Failure) -> None:
    assert RetryRule(patience_s=60.0).gives_up(failure, ended=False, troubled_s=0.0)


def test_a_sender_may_know_better_what_passes_and_what_is_nonsense() -> None:
    rule = RetryRule(patience_s=60.0, nonsense_is_absence=False, passing_codes=frozenset({"objects_missing"}))
    assert not rule.gives_up(MISSING, ended=True, troubled_s=0.0)
    assert rule.gives_up(NONSENSE, ended=True, troubled_s=61.0)
    assert not rule.gives_up(AWAY, ended=True, troubled_s=61.0)


class Sending:
    """Answers each call with the next of `results`; the last one again and again."""

    def __init__(self, *results: Sent | Failure | OSError) -> None:
        self.results = list(results)
        self.calls: list[bool] = []
        self.during: Callable[[], None] = lambda: None

    async def send(self, ended: bool) -> Sent:
        self.calls.append(ended)
        self.during()
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        return result


def courier(
    sending: Sending,
    *,
    clock: Callable[[], float] = lambda: 0.0,
    hearings: Hearings | None = None,
    **more: float,
) -> Courier:
    return Courier(
        "its things",
        sending.send,
        RetryRule(patience_s=60.0),
        hearings or Hearings(),
        look_every_s=more.get("look_every_s", 600.0),
        backoff=Backoff(0.001, 0.002),
        clock=clock,
    )


async def test_it_sends_until_nothing_will_come() -> None:
    sending = Sending(Sent.MORE, Sent.MORE, AWAY, BUSY, OSError(errno.ENOSPC, "no room"), Sent.DONE)
    one = courier(sending)
    await asyncio.wait_for(one.run(), SOON_S)
    assert len(sending.calls) == 6
    assert one.over.is_set()


def those_of_an_agent() -> Hearings:
    hearings = Hearings()
    hearings.go_on = True
    return hearings


@pytest.mark.parametrize(("then", "calls"), [(Sent.DONE, 2), (STALE, 3), (REFUSED, 2)])
async def test_who_is_called_stale_asks_again_once_the_orchestrator_has_heard_of_it(
    then: Sent | Failure, calls: int
) -> None:
    """Its job is queued until a heartbeat says that it runs on: what it sent first was refused."""
    hearings, sending = those_of_an_agent(), Sending(STALE, then)
    one = courier(sending, hearings=hearings)
    with hearings.hearing():
        running = asyncio.create_task(one.run())
        await until(lambda: bool(sending.calls))
    for _ in range(3):  # that one began before: it may have been compared before, too
        await asyncio.sleep(0)
    with contextlib.suppress(Refused), hearings.hearing():
        raise BUSY
    for _ in range(3):
        await asyncio.sleep(0)
    assert (len(sending.calls), one.over.is_set()) == (1, False)
    for heard in range(2, calls + 1):
        with hearings.hearing():
            pass
        await until(lambda heard=heard: len(sending.calls) == heard)
    await asyncio.wait_for(running, SOON_S)
    assert len(sending.calls) == calls
    assert one.gave_up is (REFUSED if then is REFUSED else None)


async def test_who_is_called_stale_later_asks_again_as_well() -> None:
    hearings, sending = those_of_an_agent(), Sending(STALE, Sent.MORE, STALE, Sent.DONE)
    running = asyncio.create_task(courier(sending, hearings=hearings).run())
    for calls in (1, 3):
        await until(lambda calls=calls: len(sending.calls) == calls)
        with hearings.hearing():
            pass
    await asyncio.wait_for(running, SOON_S)
    assert len(sending.calls) == 4


async def test_who_is_called_stale_and_told_to_stop_waits_for_nobody() -> None:
    one = courier(Sending(STALE), hearings=those_of_an_agent())
    running = asyncio.create_task(one.run())
    one.stop()
    await asyncio.wait_for(running, SOON_S)
    assert one.cut_short


async def test_an_end_that_comes_while_it_sends_is_followed_by_another_try_at_once() -> None:
    sending = Sending(Sent.ALL, Sent.DONE)
    one = courier(sending)
    sending.during = one.trainer_ended
    await asyncio.wait_for(one.run(), SOON_S)
    assert sending.calls == [False, True]


async def test_something_new_cuts_the_pause_short() -> None:
    sending = Sending(Sent.ALL)
    one = courier(sending)
    sending.during = one.wake
    assert await asyncio.wait_for(one.send_once(), SOON_S)


async def test_patience_ends_only_after_the_trainer_and_begins_anew_with_whatever_arrives() -> None:
    now = [0.0]
    sending = Sending(BUSY)
    one = courier(sending, clock=lambda: now[0])
    assert await one.send_once()
    now[0] = 100.0
    assert await one.send_once()
    one.went_well()
    one.trainer_ended()
    assert await one.send_once()
    now[0] = 161.0
    assert not await one.send_once()


async def test_an_absence_begins_the_patience_anew() -> None:
    now = [0.0]
    sending = Sending(BUSY, AWAY, BUSY)
    one = courier(sending, clock=lambda: now[0])
    one.trainer_ended()
    assert await one.send_once()
    now[0] = 1000.0
    assert await one.send_once()
    assert await one.send_once()


async def test_a_stop_ends_any_pause() -> None:
    sending = Sending(Sent.ALL)
    one = courier(sending)
    running = asyncio.create_task(one.run())
    await asyncio.sleep(0)
    one.stop()
    await asyncio.wait_for(running, SOON_S)
    assert one.over.is_set()


async def test_one_that_meets_what_nobody_thought_of_has_not_sent_all() -> None:
    """Or whatever it left would count as stored."""

    async def send(ended: bool) -> Sent:
        raise RecursionError("too deep")

    one = Courier("its things", send, RetryRule(patience_s=60.0), Hearings())
    with pytest.raises(RecursionError):
        await one.run()
    assert one.over.is_set()
    assert "RecursionError: too deep" in str(one.gave_up)
    stopped = Courier("its things", send, RetryRule(patience_s=60.0), Hearings())
    stopped.stop()
    await stopped.run()
    assert stopped.gave_up is None


async def test_a_report_waits_for_its_own_senders_and_is_told_when_they_are_over() -> None:
    over = asyncio.Event()
    senders: SendersByAttempt[Courier] = SendersByAttempt("sending", over.set)
    one = courier(Sending(Sent.ALL, Sent.DONE))
    ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert senders.are_over(TURN)
    senders.begin(TURN, one, ending, lambda _: one.trainer_ended())
    assert not senders.are_over(TURN)
    assert senders.are_over(Turn("j_2", 3))
    await asyncio.sleep(0.01)
    ending.set_result(None)
    await asyncio.wait_for(over.wait(), SOON_S)
    assert senders.are_over(TURN)
    senders.forget(TURN)
    assert senders.get(TURN) is None


async def test_in_a_hurry_nothing_more_is_waited_for() -> None:
    over = asyncio.Event()
    senders: SendersByAttempt[Courier] = SendersByAttempt("sending", over.set)
    ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    one = courier(Sending(AWAY))
    task = senders.begin(TURN, one, ending, lambda _: one.trainer_ended())
    senders.hurry()
    assert over.is_set()
    assert senders.are_over(TURN)
    ending.set_result(None)
    await asyncio.wait_for(task, SOON_S)
