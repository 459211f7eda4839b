"""One orchestrator's part in the leadership, over a book in memory and a clock that is handed in."""

import asyncio

import pytest

from simpletuner_fleet.core.leadership import LEASE_S, MARGIN_S, RENEW_EVERY_S, Lease, next_term
from simpletuner_fleet.orchestrator.leadership import Leadership


class LateBook:
    """Keeps one lease; every call takes `takes_s` of the shared clock, half of it on the way there."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.now = 1000.0
        self.takes_s = 0.0
        self.is_away = False

    def clock(self) -> float:
        return self.now

    def _called(self) -> None:
        self.now += self.takes_s
        if self.is_away:
            raise OSError("the database is away")

    def look(self) -> Lease | None:
        self._called()
        return self.lease

    def take(self, seen: Lease | None, holder: str, url: str, fingerprint: str) -> Lease | None:
        self._called()
        if self.lease != seen:
            return None
        term = next_term(seen.term if seen else 0, 0.0)
        self.lease = Lease(term=term, holder=holder, url=url, fingerprint=fingerprint)
        return self.lease

    def renew(self, term: int) -> bool:
        self._called()
        if self.lease is None or self.lease.term != term:
            return False
        self.lease = Lease(
            term=term, holder=self.lease.holder, url=self.lease.url, renewals=self.lease.renewals + 1
        )
        return True

    def release(self, term: int) -> None:
        self._called()
        if self.lease and self.lease.term == term:
            self.lease = Lease(term=term, holder=self.lease.holder, url=self.lease.url, released=True)

    def close(self) -> None: ...


def term_of(leadership: Leadership) -> int:
    """0 where it does not lead."""
    return leadership.term or 0


def test_a_slow_answer_shortens_the_promise_it_is_counted_from_when_it_was_sent() -> None:
    book = LateBook()
    leadership = Leadership(book, "a", book.clock)
    leadership.turn()
    term = leadership.term
    assert term is not None
    book.takes_s = 1.0
    leadership.turn()
    assert leadership.may_promise(term)
    book.now += LEASE_S - MARGIN_S - 1.0
    assert not leadership.may_promise(term)


def test_a_takeover_is_counted_from_when_it_was_sent_too() -> None:
    book = LateBook()
    leadership = Leadership(book, "a", book.clock)
    book.takes_s = LEASE_S
    leadership.turn()
    assert leadership.term is not None
    assert not leadership.may_promise(leadership.term)


def test_a_leader_that_cannot_renew_promises_nothing_and_goes_on_where_nobody_took_over() -> None:
    book = LateBook()
    leadership = Leadership(book, "a", book.clock)
    leadership.turn()
    term = leadership.term
    assert term is not None
    book.is_away = True
    book.now += 60
    with pytest.raises(OSError, match="away"):
        leadership.turn()
    assert not leadership.may_promise(term)
    book.is_away = False
    leadership.turn()
    assert leadership.term == term
    assert leadership.may_promise(term)


def test_a_frozen_leader_finds_its_term_over_and_follows() -> None:
    book = LateBook()
    first, second = Leadership(book, "a", book.clock), Leadership(book, "b", book.clock)
    first.turn()
    term = first.term
    assert term is not None
    second.turn()
    assert term_of(second) == 0
    book.now += LEASE_S
    second.turn()
    assert term_of(second) > term
    assert not first.may_promise(term)
    first.turn()
    assert term_of(first) == 0
    first.turn()
    assert first.leader is not None
    assert first.leader.holder == "b"


def test_a_leader_that_renews_is_not_replaced() -> None:
    book = LateBook()
    first, second = Leadership(book, "a", book.clock), Leadership(book, "b", book.clock)
    first.turn()
    for _ in range(50):
        second.turn()
        book.now += RENEW_EVERY_S
        first.turn()
    assert second.term is None
    assert second.follows_living


async def test_an_orderly_stop_gives_the_lease_back_and_the_next_leads_at_once() -> None:
    book = LateBook()
    first = Leadership(book, "a", book.clock)
    first.start("http://a")
    async with asyncio.timeout(10):
        term = await first.leads()
    await first.stop()
    assert not first.may_promise(term)
    second = Leadership(book, "b", book.clock)
    second.turn()
    assert second.term is not None


def known_leader(leadership: Leadership) -> str:
    return leadership.leader.url if leadership.leader else ""


def test_a_leader_that_is_seen_not_to_renew_is_named_to_nobody_and_one_that_cannot_be_seen_is() -> None:
    """Where nobody may take over: this one is of an older release, say."""
    book = LateBook()
    book.lease = Lease(term=7, holder="other", url="http://other")
    follower = Leadership(book, "this", book.clock)
    follower._may_stand = False
    follower.turn()
    assert known_leader(follower) == "http://other"
    book.is_away = True
    book.now += 10 * LEASE_S
    with pytest.raises(OSError, match="away"):
        follower.turn()
    assert known_leader(follower) == "http://other", "it may well lead: it is asked"
    book.is_away = False
    follower.turn()
    assert known_leader(follower) == ""
    assert book.renew(7)
    follower.turn()
    assert known_leader(follower) == "http://other"
