"""Counts what people and teams use now and have used lately, as attempts begin and end, without recounting.

Hours are those between an attempt's acceptance and its end, times its GPUs. No list of what still runs is scanned: with
G GPUs in all that began at times whose GPU-weighted sum is S, they have used G·now - S. Money is counted the same way,
in whole numbers: millionths times milliseconds, divided only when somebody asks.
"""

from bisect import insort
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import inf

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Job
from simpletuner_fleet.core.jobs.requests.deleting import DeletedJob
from simpletuner_fleet.core.jobs.states import WAITING
from simpletuner_fleet.core.money.amounts import MS_OF_HOUR, milliseconds
from simpletuner_fleet.core.money.costs import is_unpriced
from simpletuner_fleet.core.money.rates import PricedSpan, Rates, present_rate, spans_of

HOUR_S = 3600.0
EVERYBODY = "all"
WAITING_STATES = frozenset(WAITING)
ACCOUNTS_REMEMBERED = 1024
_ENDED = AttemptState.ENDED
"""Compared at every change of an attempt, without a call (`Attempt.live`); see `core/jobs/job.py`."""


def person(user_id: str) -> str:
    return f"person:{user_id}"


def team(team_id: str) -> str:
    return f"team:{team_id}"


@lru_cache(ACCOUNTS_REMEMBERED)
def counted_for(owner: str, team_id: str) -> tuple[str, ...]:
    """Returns the accounts that a job of this owner and team is counted in: always the same ones."""
    return (person(owner), EVERYBODY, team(team_id)) if team_id else (person(owner), EVERYBODY)


class Charge(Struct, frozen=True):
    """Describes what one ended attempt has used: how many GPUs, from when to when, and at what price."""

    owner: str
    team: str
    gpus: int
    begun_at: float
    ended_at: float
    hourly_micros: int | None = None
    """The price of its GPUs together; None where it is not known."""
    rates: Rates = ()
    """Later prices."""


class Window(Struct):
    """Holds the present day or month: when it began, when it ends, and what was used in it."""

    begins: float = 0.0
    ends: float = 0.0
    ended: dict[str, float] = {}
    """GPU-seconds of attempts that are over, by account."""
    starts: dict[str, float] = {}
    """Of attempts that go on: the GPU-weighted sum of when they began, but not before the window."""
    spent: dict[str, int] = {}
    """Millionths times milliseconds, of attempts that are over."""
    paid_since: dict[str, int] = {}
    """Of attempts that go on: the sum of when they began, weighted by their price."""
    unpriced: dict[str, int] = {}
    """How many that are over had no known price."""

    def forget(self) -> None:
        """Forgets the use of attempts that have ended."""
        for counts in (self.ended, self.spent, self.unpriced):
            counts.clear()


def _window() -> Window:
    return Window(
        ended=defaultdict(float),
        starts=defaultdict(float),
        spent=defaultdict(int),
        paid_since=defaultdict(int),
        unpriced=defaultdict(int),
    )


def day_of(now: float) -> tuple[float, float]:
    """Returns when the day of this moment begins and ends, in UTC."""
    midnight = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight.timestamp(), (midnight + timedelta(days=1)).timestamp()


def month_of(now: float) -> tuple[float, float]:
    first = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return first.timestamp(), (first + timedelta(days=32)).replace(day=1).timestamp()


class Going(Struct, frozen=True):
    """Describes an attempt that has not ended, as `UseLedger` counts it."""

    owner: str
    team: str
    gpus: int
    begun_at: float | None
    """None while it is an offer."""
    offered_at: float
    hourly_micros: int | None = None
    rates: Rates = ()

    @property
    def accounts(self) -> tuple[str, ...]:
        return counted_for(self.owner, self.team)


class UseLedger:
    def __init__(self) -> None:
        self.running: dict[str, int] = defaultdict(int)
        self.gpus: dict[str, int] = defaultdict(int)
        self.waiting: dict[str, int] = defaultdict(int)
        self.waiting_gpus: dict[str, int] = defaultdict(int)
        self.day, self.month = _window(), _window()
        self.hourly: dict[str, int] = defaultdict(int)
        """What all that runs costs an hour, by account."""
        self.unpriced: dict[str, int] = defaultdict(int)
        """How many run whose price is not known, by account."""
        self._timed: dict[str, int] = defaultdict(int)
        """GPUs whose time runs, by account."""
        self.going: dict[str, Going] = {}
        """By the attempt's id."""
        self._submitted: dict[str, deque[float]] = defaultdict(deque)
        self._started: dict[str, deque[float]] = defaultdict(deque)
        """When jobs were first offered to a worker, by account."""
        self.knows_charges = self.knows_last_hour = False
        """Whether what was before the counting began was looked up; what came since is counted anyway."""

    def advance(self, now: float) -> bool:
        """Begins a new day or month where one has begun, and returns whether it has."""
        if self.day.begins <= now < self.day.ends:  # each day lies within one month
            return False
        new = False
        for window, bounds in ((self.day, day_of), (self.month, month_of)):
            if window.begins <= now < window.ends:
                continue
            new = True
            window.begins, window.ends = bounds(now)
            window.forget()
            window.starts.clear()
            window.paid_since.clear()
            for one in self.going.values():
                if one.begun_at is not None:
                    since = max(one.begun_at, window.begins)
                    for account in one.accounts:
                        window.starts[account] += one.gpus * since
                        window.paid_since[account] += _paid_since(one.hourly_micros, one.rates, since)
        return new

    def see_attempt(self, before: Attempt | None, after: Attempt | None, job: Job | None) -> None:
        if before is not None and after is not None and _as_before(before, after):
            return
        owner, team_id = (job.owner, job.team) if job else ("", "")
        accounts = counted_for(owner, team_id)
        if before is None or after is None:
            self._see_start(accounts, before, after)
        self._see_going(owner, team_id, before, after)
        for attempt, sign in ((before, -1), (after, 1)):
            if attempt is None or attempt.accepted_at is None or not attempt.gpus:
                continue
            if attempt.state is not _ENDED:
                self._count_time(accounts, attempt, attempt.accepted_at, sign)
            elif attempt.ended_at is not None:
                gpus, begun, ended = len(attempt.gpus), attempt.accepted_at, attempt.ended_at
                charge = Charge(owner, team_id, gpus, begun, ended, attempt.hourly_micros, attempt.rates)
                self._charge(accounts, charge, sign)

    def _see_going(self, owner: str, team_id: str, before: Attempt | None, after: Attempt | None) -> None:
        """Counts that an attempt lives, or no longer does; its GPUs are the same from its offer to its end."""
        going = self.going.pop(before.id, None) if before is not None else None
        sign, gpus = (-1, going.gpus) if going else (0, 0)
        if after is not None and after.state is not _ENDED:
            gpus = len(after.gpus)
            sign += 1
            self.going[after.id] = Going(
                owner,
                team_id,
                gpus,
                after.accepted_at,
                after.offered_at,
                after.hourly_micros,
                after.rates,
            )
        if sign:
            for account in counted_for(owner, team_id):
                self.running[account] += sign
                self.gpus[account] += sign * gpus

    def _count_time(self, accounts: tuple[str, ...], attempt: Attempt, begun: float, sign: int) -> None:
        """Counts when the GPUs of an attempt that goes on began, and what they cost since then."""
        gpus = sign * len(attempt.gpus)
        for account in accounts:
            self._timed[account] += gpus
        for window in (self.day, self.month):
            since = gpus * max(begun, window.begins)
            for account in accounts:
                window.starts[account] += since
        self._count_money(accounts, attempt, begun, sign)

    def _count_money(self, accounts: tuple[str, ...], attempt: Attempt, since: float, sign: int) -> None:
        first, rates, unpriced = attempt.hourly_micros, attempt.rates, is_unpriced(attempt)
        if not (first or rates or unpriced):
            return
        hourly = present_rate(first, rates) or 0
        for account in accounts:
            self.unpriced[account] += sign * unpriced
            if hourly or rates:
                self.hourly[account] += sign * hourly
                for window in (self.day, self.month):
                    counted = _paid_since(first, rates, max(since, window.begins))
                    window.paid_since[account] += sign * counted

    def take_charges(self, charges: Iterable[Charge]) -> None:
        """Counts anew all attempts that have ended in the present month."""
        self.day.forget()
        self.month.forget()
        for one in charges:
            self._charge(counted_for(one.owner, one.team), one, 1)
        self.knows_charges = True

    def _charge(self, accounts: tuple[str, ...], charge: Charge, sign: int) -> None:
        counted_from, paid, unpriced = inf, 0, False
        for window in (self.day, self.month):
            since = max(charge.begun_at, window.begins)
            seconds = charge.ended_at - since
            if seconds <= 0:
                continue
            if since != counted_from:  # mostly it began in both
                counted_from, (paid, unpriced) = since, _paid_between(charge, since)
            for account in accounts:
                window.ended[account] += sign * charge.gpus * seconds
                if paid:
                    window.spent[account] += sign * paid
                if unpriced:
                    window.unpriced[account] += sign

    def see_job(self, before: Job | None, after: Job | None) -> None:
        if (
            before is not None
            and after is not None
            and before.state is after.state
            # One that waits may be edited to need more GPUs, or fewer.
            and before.requires.gpus == after.requires.gpus
        ):
            return
        for job, sign in ((before, -1), (after, 1)):
            if job is not None and job.state in WAITING_STATES:
                self._count_waiting(job, sign)
        if before is None and after is not None:
            self.note_submission(after)
        elif after is None and before is not None:
            for account in counted_for(before.owner, before.team):
                if self._submitted[account] and self._submitted[account][-1] == before.created_at:
                    self._submitted[account].pop()

    def _count_waiting(self, job: Job, sign: int) -> None:
        for account in counted_for(job.owner, job.team):
            self.waiting[account] += sign
            self.waiting_gpus[account] += sign * job.requires.gpus

    @contextmanager
    def without(self, job: Job) -> Iterator[None]:
        """Counts for a while as if a job that waits had not been submitted: it is about to be another."""
        accounts = [self._submitted[account] for account in counted_for(job.owner, job.team)]
        counted = [moments for moments in accounts if job.created_at in moments]
        self._count_waiting(job, -1)
        for moments in counted:
            moments.remove(job.created_at)
        try:
            yield
        finally:
            self._count_waiting(job, 1)
            for moments in counted:
                insort(moments, job.created_at)

    def note_submission(self, job: Job | DeletedJob) -> None:
        _note_moment(self._submitted, counted_for(job.owner, job.team), job.created_at)

    def take_submissions(self, jobs: Iterable[Job | DeletedJob]) -> None:
        """Counts the submissions of the last hour anew, in the order in which they came."""
        self._submitted.clear()
        for job in jobs:
            self.note_submission(job)

    def submitted_since(self, account: str, at: float) -> Sequence[float]:
        """Returns when jobs were submitted since then, the oldest first."""
        return _since(self._submitted[account], at)

    def _see_start(self, accounts: tuple[str, ...], before: Attempt | None, after: Attempt | None) -> None:
        """Counts a job once, from its first offer: a job that is tried again has started already."""
        if before is None and after is not None and after.number == 1:
            _note_moment(self._started, accounts, after.offered_at)
        elif after is None and before is not None and before.number == 1:
            for account in accounts:
                if self._started[account] and self._started[account][-1] == before.offered_at:
                    self._started[account].pop()

    def take_starts(self, starts: Iterable[tuple[float, Job | DeletedJob]]) -> None:
        """Counts the starts of the last hour anew, in the order in which they came."""
        self._started.clear()
        for at, job in starts:
            _note_moment(self._started, counted_for(job.owner, job.team), at)

    def started_since(self, account: str, at: float) -> Sequence[float]:
        """Returns when jobs first began since then, the oldest first."""
        return _since(self._started[account], at)

    def forget_starts_until(self, at: float) -> None:
        """Forgets what `oldest_start` has told, once somebody has seen to what follows from it."""
        _forget_until(self._started[EVERYBODY], at)

    def oldest_start(self) -> float | None:
        """Returns the oldest counted start of the last hour, which may have become older than that."""
        moments = self._started[EVERYBODY]
        return moments[0] if moments else None

    def gpu_hours(self, window: Window, account: str, now: float) -> float:
        going = self._timed[account] * now - window.starts[account]
        return max(0.0, window.ended[account] + going) / HOUR_S

    def spent_micros(self, window: Window, account: str, now: float) -> int:
        going = self.hourly[account] * milliseconds(now) - window.paid_since[account]
        return max(0, window.spent[account] + going) // MS_OF_HOUR

    def known_accounts(self) -> set[str]:
        """Returns the accounts of which something runs, or has ended in the present month."""
        return {*self.hourly, *self.unpriced, *self.month.ended, *self.running}

    def knows_every_price(self, window: Window, account: str) -> bool:
        return not window.unpriced[account] and not self.unpriced[account]


def _since(moments: deque[float], at: float) -> Sequence[float]:
    """Returns those after this moment. A look forgets none: it must not take from the clock what the clock is to free."""
    return [one for one in moments if one > at] if moments and moments[0] <= at else moments


def _forget_until(moments: deque[float], at: float) -> None:
    while moments and moments[0] <= at:
        moments.popleft()


def _note_moment(noted: dict[str, deque[float]], accounts: tuple[str, ...], at: float) -> None:
    """Notes the moment in each account, and forgets those of more than an hour before."""
    an_hour_before = at - HOUR_S
    for account in accounts:
        moments = noted[account]
        _forget_until(moments, an_hour_before)
        moments.append(at)


def _paid(span: PricedSpan) -> int:
    """Returns the cost of the span in millionths times milliseconds."""
    return (span.hourly_micros or 0) * (milliseconds(span.ended_at) - milliseconds(span.begun_at))


def _paid_between(charge: Charge, since: float) -> tuple[int, bool]:
    """Returns what it has paid from then to its end, and whether the price of some of that is not known."""
    paid, unpriced = 0, False
    for span in spans_of(charge.hourly_micros, charge.rates, since, charge.ended_at):
        if span.hourly_micros is None:
            unpriced = charge.gpus > 0
        else:
            paid += _paid(span)
    return paid, unpriced


def _paid_since(first: int | None, rates: Rates, since: float) -> int:
    """Returns the constant C for which P·now - C is the amount paid since then, where P is the present price."""
    if not rates:
        return (first or 0) * milliseconds(since)
    last = max(since, rates[-1][0])
    earlier = sum(map(_paid, spans_of(first, rates, since, last)))
    return (rates[-1][1] or 0) * milliseconds(last) - earlier


def _as_before(before: Attempt, after: Attempt) -> bool:
    return (
        before.state is after.state
        and before.accepted_at == after.accepted_at
        and before.ended_at == after.ended_at
        and before.rates == after.rates
    )
