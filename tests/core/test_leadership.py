"""Who may lead and promise: by clocks that pause and run unequally, and a database that keeps the lease."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpletuner_fleet.core.leadership import (
    LEASE_S,
    MARGIN_S,
    RENEW_EVERY_S,
    Lease,
    LeaseWatch,
    is_outdated,
    may_promise,
    may_take_over,
    next_look_s,
    next_term,
    watched,
)

LEASE = Lease(term=7, holder="a", url="http://a", renewals=3)


def test_nobody_promises_before_a_renewal_has_succeeded() -> None:
    assert not may_promise(None, 0.0)


def test_promises_end_before_the_lease_does_counted_from_when_the_renewal_was_sent() -> None:
    assert may_promise(10.0, 10.0 + LEASE_S - MARGIN_S - 0.001)
    assert not may_promise(10.0, 10.0 + LEASE_S - MARGIN_S)


def test_a_lease_that_nobody_holds_or_that_was_given_back_is_taken_at_once() -> None:
    assert may_take_over(LeaseWatch(lease=None, since=5.0), 5.0)
    released = Lease(term=7, holder="a", url="http://a", released=True)
    assert may_take_over(LeaseWatch(lease=released, since=5.0), 5.0)


def test_a_lease_is_taken_over_when_it_was_watched_unrenewed_for_all_of_its_time() -> None:
    watch = watched(None, LEASE, 5.0)
    assert not may_take_over(watch, 5.0 + LEASE_S - 0.001)
    assert may_take_over(watch, 5.0 + LEASE_S)


def test_a_renewal_begins_the_watch_anew_and_a_look_that_sees_the_same_does_not() -> None:
    watch = watched(watched(None, LEASE, 5.0), LEASE, 6.0)
    assert watch.since == 5.0
    renewed = Lease(term=7, holder="a", url="http://a", renewals=4)
    assert watched(watch, renewed, 6.5).since == 6.5


def test_a_watcher_looks_again_no_later_than_when_the_lease_would_be_over() -> None:
    watch = watched(None, LEASE, 5.0)
    assert next_look_s(watch, 5.0) < LEASE_S
    assert next_look_s(watch, 5.0 + LEASE_S - 0.01) == pytest.approx(0.01)
    assert next_look_s(watch, 50.0) == 0.0


def test_terms_rise_also_where_the_database_was_restored_from_an_older_copy() -> None:
    assert next_term(7, 3.0) == 8
    assert next_term(7, 1_800_000_000.9) == 1_800_000_000


def test_an_answer_of_a_replaced_leader_is_outdated_and_one_without_a_term_never_is() -> None:
    assert is_outdated(6, 7)
    assert not is_outdated(7, 7)
    assert not is_outdated(8, 7)
    assert not is_outdated(None, 7)


class Book:
    """The database: one row, changed by whoever still holds what it believes."""

    def __init__(self) -> None:
        self.lease: Lease | None = None

    def take(self, seen: Lease | None, holder: str) -> Lease | None:
        if self.lease != seen:
            return None
        term = next_term(seen.term if seen else 0, 0.0)
        self.lease = Lease(term=term, holder=holder, url="", renewals=0)
        return self.lease

    def renew(self, term: int) -> bool:
        if self.lease is None or self.lease.term != term:
            return False
        lease = self.lease
        self.lease = Lease(term=term, holder=lease.holder, url="", renewals=lease.renewals + 1)
        return True


class Candidate:
    """One orchestrator on a clock of its own. What it sends takes time to arrive, and so does the answer."""

    def __init__(self, name: str, speed: float, offset: float) -> None:
        self.name = name
        self._speed, self._offset = speed, offset
        self.term: int | None = None
        self.sent_at: float | None = None
        self.watch: LeaseWatch | None = None
        self.wakes_at = 0.0
        self.sending: tuple[float, float, float] | None = None
        """What is under way: (sent at, on its own clock; arrives; answered)."""
        self.answer: Lease | bool | None = None

    def clock(self, now: float) -> float:
        return self._offset + now * self._speed

    def promises(self, now: float) -> bool:
        return self.term is not None and may_promise(self.sent_at, self.clock(now))


def play(seed: int, *, drift: float) -> tuple[int, list[tuple[float, str, str]]]:
    """Returns how many terms there were, and every moment at which two promised."""
    chance = random.Random(seed)
    book = Book()
    candidates = [
        Candidate(name, 1 + chance.uniform(-drift, drift), chance.uniform(0, 1e6)) for name in ("a", "b", "c")
    ]
    overlaps = []
    now = 0.0
    while now < 60.0:
        now += 0.02
        for candidate in candidates:
            step(candidate, book, now, chance)
        promising = [each.name for each in candidates if each.promises(now)]
        if len(promising) > 1:
            overlaps.append((now, promising[0], promising[1]))
    return book.lease.term if book.lease else 0, overlaps


def step(candidate: Candidate, book: Book, now: float, chance: random.Random) -> None:
    if now < candidate.wakes_at:
        return  # asleep between two turns, or frozen: its clock goes on
    if chance.random() < 0.002:
        candidate.wakes_at = now + chance.uniform(0.5, 8.0)
        return
    if candidate.sending is None:
        arrives = now + chance.choice((0.0, 0.02, 0.3, 3.0) if chance.random() < 0.1 else (0.0, 0.02))
        candidate.sending = (candidate.clock(now), arrives, arrives + chance.choice((0.0, 0.02, 0.5)))
        candidate.answer = None
    sent_at, arrives, answered = candidate.sending
    if now >= arrives and candidate.answer is None:
        candidate.answer = book.renew(candidate.term) if candidate.term is not None else (book.lease or False)
    if now < answered or candidate.answer is None:
        return
    candidate.sending = None
    if candidate.term is not None:
        if candidate.answer:
            candidate.sent_at = sent_at
        else:
            candidate.term = candidate.sent_at = candidate.watch = None
        candidate.wakes_at = now + RENEW_EVERY_S
        return
    lease = candidate.answer if isinstance(candidate.answer, Lease) else None
    own_now = candidate.clock(now)
    candidate.watch = watched(candidate.watch, lease, own_now)
    if may_take_over(candidate.watch, own_now):
        mine = book.take(lease, candidate.name)
        if mine:
            candidate.term, candidate.sent_at = mine.term, own_now
    candidate.wakes_at = now + next_look_s(candidate.watch, own_now)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_two_orchestrators_never_promise_at_once_however_they_pause_and_messages_lag(seed: int) -> None:
    terms, overlaps = play(seed, drift=0.02)
    assert overlaps == []
    assert terms >= 1


def test_the_play_has_many_changes_of_leader() -> None:
    assert sum(play(seed, drift=0.02)[0] for seed in range(10)) > 20


def test_the_play_notices_when_clocks_differ_by_more_than_the_margin_allows() -> None:
    """Otherwise it would prove nothing."""
    assert any(play(seed, drift=0.6)[1] for seed in range(40))
