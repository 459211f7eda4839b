"""Keeps the roster and the limits beside the store's writer, in step with every change and rollback of a row."""

import logging
from collections.abc import Sequence

from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.people.accounts import User
from simpletuner_fleet.core.placement.roster.reservations import Reserved
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.placement.usage import UseLedger
from simpletuner_fleet.core.policy import NO_LIMITS, NOTHING_STARTS, Limits
from simpletuner_fleet.core.restoring import HELD_UNTIL
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.kept_settings import look_through, read_setting
from simpletuner_fleet.engine.memory.causes import Cause
from simpletuner_fleet.engine.memory.ceilings import CeilingWatch
from simpletuner_fleet.engine.memory.counting import book_of, shares_of
from simpletuner_fleet.engine.memory.organisation import Organisation, read_organisation
from simpletuner_fleet.engine.memory.setting_documents import LIMITS_SETTING, document
from simpletuner_fleet.engine.readable import readable_job
from simpletuner_fleet.ports import SetAsideRow, View

log = logging.getLogger(__name__)


class FleetIndex:
    """Implements ports.RowObserver: it keeps the roster, limits and usage in step with the rows.

    It is touched only inside the store's writing steps, which run one at a time.
    """

    def __init__(self) -> None:
        self.roster = Roster()
        self.limits: Limits | None = None
        """None: not looked up since the rows were lost."""
        self.organisation: Organisation | None = None
        """The same of teams, quotas and shares."""
        self._told_unreadable: set[SetAsideRow] = set()
        self.usage = UseLedger()
        """Always counted, since rows are told of once; history is looked up where a quota or a share needs it."""
        self.ceilings = CeilingWatch()
        self.reachable: set[str] = set()
        self.version = 0
        """Rises with every change that figures and reasons depend on."""
        self.settled = False
        """Whether a step has run since all rows were told."""
        self.unplaced = True
        """Rows were told anew, so that nobody knows what was about to be placed, or the clock may have freed a quota."""
        self.left_to_place: Sequence[Cause] = ()
        """What the last step was to place and has left to the next, since one step places only so many."""
        self.placing_from: float | None = None
        """Nothing is placed before: after a restore workers first tell what they run."""
        self.reserved_before: Reserved | None = None
        """Of a step that was undone: which workers were reserved for whom; see `put_reservations_back`."""

    def holds_placements(self, now: float) -> bool:
        return self.placing_from is not None and now < self.placing_from

    def rows_reset(self) -> None:
        self.roster = Roster()
        self.version += 1
        self.settled = False
        self.usage = UseLedger()
        self.ceilings = CeilingWatch()
        self.limits = None
        self.organisation = None
        self.unplaced = True
        self.left_to_place = ()
        self.reserved_before = None

    def put_reservations_back(self) -> None:
        """Restores the reservations that an undone step found, when its rows are as before.

        A worker that changes back lets go of its reservation like any that changes, and nobody would be offered it.
        """
        if self.reserved_before is not None:
            self.roster.reservations.put_back(self.reserved_before)
            self.reserved_before = None

    def worker_changed(self, before: Worker | None, after: Worker | None) -> None:
        if after is not None:
            self.roster.put_worker(after)
            if before is None:
                self.roster.set_reachable(after.id, after.id in self.reachable)
        elif before is not None:
            self.roster.drop_worker(before.id)
        self.version += 1

    def job_changed(self, before: Job | None, after: Job | None) -> None:
        self.roster.see_job(before, after)
        self.usage.see_job(before, after)
        if self.ceilings.watched:
            self.ceilings.see_job(after)
        if before is None or after is None or before.state is not after.state:
            self.version += 1

    def attempt_changed(self, before: Attempt | None, after: Attempt | None, job: Job | None) -> None:
        self.roster.see_attempt(before, after, job.owner if job else "", job.team if job else "")
        self.usage.see_attempt(before, after, job)
        if job is not None and job.max_cost_micros is not None:
            self.ceilings.see_attempt(after, job)
        if self.roster.lines.shares is not None:
            self.roster.lines.shares.see_attempt(before, after, job)
        self.version += 1

    def set_reachable(self, worker_id: str, reachable: bool) -> None:
        if reachable:
            self.reachable.add(worker_id)
        else:
            self.reachable.discard(worker_id)
        self.roster.set_reachable(worker_id, reachable)
        self.version += 1

    def limits_in(self, view: View) -> Limits:
        if self.limits is None:
            self.limits = read_limits(view)
        return self.limits

    def organisation_in(self, view: View, now: float) -> Organisation:
        if self.organisation is not None:
            return self.organisation
        look_through(view)
        return self._take_organisation(view, now, None)

    def organisation_changed(self, view: View, now: float) -> Organisation:
        """Reads the organisation anew, but for its users: of each of them `user_changed` is called."""
        known, self.organisation = self.organisation, None
        return self._take_organisation(view, now, known)

    def _take_organisation(self, view: View, now: float, known: Organisation | None) -> Organisation:
        fresh = read_organisation(view, known)
        self._tell_unreadable(fresh)
        self.usage.advance(now)
        self.roster.set_allowlists(fresh.allowlists)
        self.roster.set_prices(fresh.prices)
        self.roster.unreadable = fresh.unreadable_for_starts
        self.roster.book = book_of(view, fresh, self.usage, now)
        lines = self.roster.lines
        lines.shares = shares_of(view, fresh, self.usage, now, lines.shares)
        self.organisation = fresh  # last: where a look fails midway, everything is looked up again
        self.version += 1
        return fresh

    def _tell_unreadable(self, fresh: Organisation) -> None:
        for one in fresh.unreadable:
            if one not in self._told_unreadable:
                self._told_unreadable.add(one)
                log.error("the setting %s cannot be read and is set aside: %s", one.id, one.why)

    def user_changed(self, view: View, now: float, user: User) -> Organisation:
        """Updates one user who is new or has another role, without reading anything else of the organisation."""
        self.organisation = self.organisation_in(view, now).with_user(user)
        if self.roster.book is not None:
            self.roster.book.roles, self.roster.book.names = self.organisation.roles, self.organisation.names
            self.roster.lines.freed_owners.add(user.id)
        return self.organisation

    def begin_step(self, view: View, now: float) -> None:
        """Advances what is counted by time, and notes whether the clock alone may have freed a quota.

        The clock says it once: it stays noted where this step fails.
        """
        if self.usage.advance(now):  # before anything is looked up, which may fail
            self.unplaced = True
        if self.organisation is None:
            self.organisation_in(view, now)
        roster = self.roster
        if roster.lines.shares is not None:
            roster.lines.shares.advance(now)
        if roster.book is not None:
            roster.book.advance(now)
            if roster.book.frees_a_start(now):
                self.unplaced = True
            roster.book.forget_old_starts(now)

    def clock_frees_something(self, now: float) -> bool:
        book = self.roster.book
        return book is not None and (now >= self.usage.day.ends or book.frees_a_start(now))


def read_limits(view: View) -> Limits:
    """Returns the limits. Where they cannot be read nothing starts: nobody knows how many may run."""
    unreadable: list[SetAsideRow] = []
    limits = document(view, LIMITS_SETTING, Limits, unreadable)
    return NOTHING_STARTS if unreadable else limits or NO_LIMITS


def held_until(view: View) -> float | None:
    """Returns until when nothing is placed after a restore, as the leader has stored it."""
    return read_setting(view, HELD_UNTIL, float, None)


def roster_of(view: View) -> Roster:
    """Returns the workers and what they hold as a snapshot, without the waiting jobs."""
    roster = Roster()
    organisation = read_organisation(view)
    roster.set_allowlists(organisation.allowlists)
    roster.set_prices(organisation.prices)
    roster.unreadable = organisation.unreadable_for_starts
    for worker in view.workers():
        roster.put_worker(worker)
    for attempt in view.live_attempts():
        job = readable_job(view, attempt.job_id)
        roster.see_job(None, job)
        roster.see_attempt(None, attempt, job.owner if job else "", job.team if job else "")
    return roster
