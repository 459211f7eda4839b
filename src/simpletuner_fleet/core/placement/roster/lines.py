"""Keeps the queues in which jobs wait, one for each class, and the order among the classes."""

from collections.abc import Callable, Generator, Iterable
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from math import inf

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Hold, Job, JobState, Requirements
from simpletuner_fleet.core.placement.ordering import Place, place_of
from simpletuner_fleet.core.placement.roster.alike import SLACK_IN_LINE, Alike, Room, Standing
from simpletuner_fleet.core.placement.roster.ranks import Ranks
from simpletuner_fleet.core.placement.roster.start_limits import OwnerRules, StartLimits
from simpletuner_fleet.core.placement.shares import NO_SHARE, ShareKey, Shares

MAX_IDLE_CLASSES = 1024
KEPT = inf
"""Stands for what an owner has used whose jobs may not start for now."""
LineEntry = tuple[float, int, str]
"""The place and the job: what a line is ordered by."""
Precedence = tuple[ShareKey, Place, str]
"""Of a class: what its team and owner have used where that counts, the place of its first job, and the class itself."""


class Waiting:
    """Holds one class of jobs: those that wait, in order, and the workers that fit them.

    Which workers fit is kept once for all classes that are alike. The queue is a heap in which a job that has left
    stays until it comes to the front: leaving costs nothing.
    """

    __slots__ = ("alike", "count", "line", "requires")

    def __init__(self, requires: Requirements, alike: Alike) -> None:
        self.requires = requires
        self.alike = alike
        self.count = 0
        self.line: list[tuple[float, int, str]] = []

    @property
    def fitting(self) -> set[str]:
        return self.alike.fitting

    @property
    def open(self) -> dict[str, Room | None]:
        return self.alike.open


class Lines:
    """Keeps the queues of all classes in which a job waits, or that were asked about lately.

    `begun` is called with an `Alike` when its first class is made, to say which workers fit it, and `over`
    when its last one has gone.
    """

    def __init__(self, begun: Callable[[Alike], None], over: Callable[[Alike], None]) -> None:
        self.shares: Shares | None = None
        """None where nobody's share counts: first come, first served."""
        self.classes: dict[str, Waiting] = {}
        self.alike: dict[Requirements, Alike] = {}
        """By what they require, whoever is their owner unless workers tell them apart."""
        self._begun, self._over = begun, over
        self._distinguished: set[str] = set()
        """People whom some worker names, or has named: their classes are alike with nobody else's."""
        self._idle: dict[str, None] = {}
        """Classes in which nobody waits; the one that was asked for longest ago comes first."""
        self._classes_of: dict[str, dict[str, dict[str, None]]] = {}
        """By owner and team."""
        self._noted_by: tuple[Shares | None, int] = (None, 0)
        """By which shares, and in which round of theirs, the lines of all who are alike were noted."""
        self._kept_by: OwnerRules | None = None
        """By which rules owners were found to be kept waiting."""
        self.freed_owners: set[str] = set()
        """Whom those rules may keep waiting no longer; they are noted again before anybody asks who is next."""
        self.entries: dict[str, LineEntry] = {}
        """Of each job that waits, the very entry by which it stands in its line; equal ones elsewhere are left over."""
        self._ranks = Ranks()
        """Of every job that waits."""
        self._newest_ranks: dict[int, float] = {}
        """By priority, since somebody began to wait."""
        self._waiting_by_team: dict[str, int] = {}
        """How many jobs of each team wait; '' stands for all who have none."""

    def waiting(self, class_id: str, requires: Requirements) -> Waiting:
        waiting = self.classes.get(class_id)
        if waiting is None:
            alike = self._alike_of(requires)
            alike.classes.add(class_id)
            waiting = self.classes[class_id] = Waiting(requires, alike)
            self._classes_of.setdefault(requires.owner, {}).setdefault(requires.team, {})[class_id] = None
        if not waiting.count:
            self._idle.pop(class_id, None)
            self._idle[class_id] = None
            self._forget_idle_classes()
        return waiting

    def count(self, class_id: str) -> int:
        waiting = self.classes.get(class_id)
        return waiting.count if waiting else 0

    def requires(self, class_id: str) -> Requirements:
        return self.classes[class_id].requires

    def fitting(self, class_id: str) -> set[str]:
        return self.classes[class_id].fitting

    def classes_with_jobs(self) -> list[str]:
        known = list(self.classes.items())  # a long queue may just be loaded in another thread
        return [class_id for class_id, waiting in known if waiting.count]

    def teams_waiting(self) -> set[str]:
        """Returns the teams of which jobs wait; '' stands for all who have none."""
        return set(self._waiting_by_team)

    def share_with(self, others: "Lines") -> None:
        """Takes the shares of other lines, and of which teams jobs wait there, but none of the jobs."""
        self.shares, self._waiting_by_team = others.shares, dict(others._waiting_by_team)

    def position(self, rank: float) -> int:
        """Returns how many waiting jobs stand at or before this rank."""
        return self._ranks.up_to(rank)

    def newest_moment(self, priority_point_s: float) -> float:
        """Returns when the last of the waiting jobs was submitted, as their ranks tell it."""
        newest = -inf
        for priority, rank in self._newest_ranks.items():
            moment = rank + priority * priority_point_s
            if moment > newest:
                newest = moment
        return newest

    def join(self, job: Job) -> None:
        """Adds a job that may be placed to the queue of its class."""
        line = job.line
        waiting = self.classes.get(line) or self.waiting(line, job.requires)
        entry = self.entries[job.id] = (*place_of(job), job.id)
        heappush(waiting.line, entry)
        waiting.count += 1
        team = job.requires.team
        self._waiting_by_team[team] = self._waiting_by_team.get(team, 0) + 1
        self._idle.pop(line, None)
        if waiting.count == 1 or waiting.line[0] is entry:  # behind others it moves nobody ahead
            self._note((line,))
        self._ranks.add(job.rank)
        newest = self._newest_ranks.get(job.priority)
        if newest is None or job.rank > newest:
            self._newest_ranks[job.priority] = job.rank

    def leave(self, job: Job) -> None:
        """Removes a job that was placed, held or ended from its queue."""
        line, team = job.line, job.requires.team
        waiting = self.classes[line]
        waiting.count -= 1
        if not waiting.count:
            self._idle[line] = None
        self._waiting_by_team[team] -= 1
        if not self._waiting_by_team[team]:
            del self._waiting_by_team[team]
        del self.entries[job.id]
        self._ranks.remove(job.rank)
        if not self.entries:
            self._newest_ranks.clear()
        if len(waiting.line) > 2 * waiting.count + SLACK_IN_LINE:
            self._tidy_line(waiting)

    def head(self, class_id: str) -> str | None:
        """Returns the first job in the queue of this class."""
        if class_id not in self.classes:
            return None
        line = self.classes[class_id].line
        while line and self.entries.get(line[0][2]) is not line[0]:
            heappop(line)
        return line[0][2] if line else None

    def precedence(self, class_id: str) -> Precedence | None:
        """Returns the position of this class among others: the smallest goes first."""
        job_id = self.head(class_id)
        if job_id is None:
            return None
        share = self.shares.key(self.classes[class_id].requires) if self.shares else NO_SHARE
        return share, self.entries[job_id][:2], class_id

    def line_of(self, class_ids: Iterable[str]) -> list[Precedence]:
        """Returns those of these classes in which a job waits, as a heap."""
        line = [one for class_id in class_ids if (one := self.precedence(class_id))]
        heapify(line)
        return line

    def by_precedence(self, fits: Iterable[Alike], kept: StartLimits | None = None) -> Generator[str]:
        """Yields the classes with jobs among these, in the order of their precedence, but for those that are `kept`.

        Nobody may join or leave a line, and no attempt begin or end, before it is closed.
        """
        self._note_who_moved(kept.owner_rules if kept else None)
        standing_of = partial(self._standing, kept)
        of_teams = kept if kept and kept.concern_teams else None
        heads = [
            (self._before_others(first), alike)
            for alike in fits
            if alike.line
            and not (of_teams and of_teams.keep_team(alike.requires))
            and (first := alike.first(standing_of))
            and first[0] != KEPT
        ]
        heapify(heads)
        taken: list[tuple[Alike, Standing]] = []
        try:
            while heads:
                precedence, alike = heads[0]
                yield precedence[2]
                taken.append((alike, alike.take()))
                following = alike.first(standing_of)
                if following and following[0] != KEPT:
                    heapreplace(heads, (self._before_others(following), alike))
                else:
                    heappop(heads)
        finally:
            for alike, standing in taken:
                alike.put_back(standing)

    def _standing(self, kept: StartLimits | None, class_id: str) -> Standing | None:
        """Returns the position of this class among those that are alike.

        One whose owner is kept waiting stands behind all that are not.
        """
        job_id = self.head(class_id)
        if job_id is None:
            return None
        requires = self.classes[class_id].requires
        if kept is not None and kept.keep_owner(requires):
            used = KEPT
        else:
            used = self.shares.used_by(requires.team, requires.owner) if self.shares else 0.0
        return used, self.entries[job_id][:2], class_id

    def _before_others(self, standing: Standing) -> Precedence:
        used, place, class_id = standing
        team = self.classes[class_id].requires.team
        return ((self.shares.for_weight(team), used) if self.shares else NO_SHARE), place, class_id

    def _note_who_moved(self, owner_rules: OwnerRules | None) -> None:
        """Notes whom an attempt that began or ended may have moved ahead, or everybody if the rules are others."""
        shares = self.shares
        counted_by = (shares, shares.round if shares else 0)
        if counted_by != self._noted_by or owner_rules != self._kept_by:
            self._noted_by, self._kept_by = counted_by, owner_rules
            for alike in self.alike.values():
                alike.forget()
            self._note(self.classes_with_jobs())
        else:
            for team, owner in shares.moved if shares else ():
                self._note(self._classes_of.get(owner, {}).get(team, ()))
            for owner in self.freed_owners if owner_rules else ():
                for class_ids in self._classes_of.get(owner, {}).values():
                    self._note(class_ids)
        if shares:
            shares.moved.clear()
        self.freed_owners.clear()

    def _note(self, class_ids: Iterable[str]) -> None:
        for class_id in class_ids:
            if standing := self._standing(None, class_id):
                self.classes[class_id].alike.note(standing)

    def tell_apart(self, people: Iterable[str]) -> None:
        """Matches jobs of these people separately, since a worker now takes jobs of some of them only."""
        new = set(people) - self._distinguished
        if not new:
            return
        self._distinguished |= new
        theirs = [class_ids for owner in new for class_ids in self._classes_of.get(owner, {}).values()]
        for class_id in [class_id for class_ids in theirs for class_id in class_ids]:
            waiting = self.classes[class_id]
            self._leave_alike(class_id, waiting.alike)
            waiting.alike = self._alike_of(waiting.requires)
            waiting.alike.classes.add(class_id)
            self._note((class_id,))

    def _alike_of(self, requires: Requirements) -> Alike:
        shared = requires if requires.owner in self._distinguished else replace(requires, owner="")
        alike = self.alike.get(shared)
        if alike is None:
            alike = self.alike[shared] = Alike(shared)
            self._begun(alike)
        return alike

    def _tidy_line(self, waiting: Waiting) -> None:
        waiting.line = [one for one in waiting.line if self.entries.get(one[2]) is one]
        heapify(waiting.line)

    def _forget_idle_classes(self) -> None:
        """Forgets the oldest idle classes; the newest stays, since whoever asked for it is about to use it."""
        if len(self._idle) <= MAX_IDLE_CLASSES:
            return
        for class_id in list(islice(self._idle, max(1, MAX_IDLE_CLASSES // 4))):
            del self._idle[class_id]
            self._forget_class(class_id)

    def _forget_class(self, class_id: str) -> None:
        gone = self.classes.pop(class_id)
        team, owner = gone.requires.team, gone.requires.owner
        of_owner = self._classes_of[owner]
        del of_owner[team][class_id]
        if not of_owner[team]:
            del of_owner[team]
        if not of_owner:
            del self._classes_of[owner]
        self._leave_alike(class_id, gone.alike)

    def _leave_alike(self, class_id: str, alike: Alike) -> None:
        alike.classes.discard(class_id)
        alike.noted.pop(class_id, None)
        if not alike.classes:
            self._over(alike)
            del self.alike[alike.requires]


_QUEUED, _NO_HOLD = JobState.QUEUED, Hold.NONE
"""Compared at every change of a job; see `core/jobs/job.py`."""


def waits(job: Job) -> bool:
    """Tells whether the job is in its queue and free to be placed."""
    return job.state is _QUEUED and job.hold is _NO_HOLD
