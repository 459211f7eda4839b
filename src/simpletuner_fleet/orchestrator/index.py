"""The roster and the limits, kept beside the store's writer and rebuilt from the store whenever in doubt."""

import msgspec

from simpletuner_fleet.core.policy import Limits
from simpletuner_fleet.core.roster import Roster
from simpletuner_fleet.ports import View

LIMITS_SETTING = "limits"


class FleetIndex:
    """Touched only inside the store's writing steps, which run one at a time."""

    def __init__(self) -> None:
        self.roster = Roster()
        self.limits = Limits()
        self.hearing: set[str] = set()
        self._loaded = False

    def forget(self) -> None:
        """What was written may not have been kept: look again before the next step."""
        self._loaded = False

    @property
    def loaded(self) -> bool:
        return self._loaded

    def load(self, view: View) -> bool:
        """True if it had to look again: then nobody knows any more what was about to be placed."""
        if self._loaded:
            return False
        roster = Roster()
        for worker in view.workers():
            roster.put_worker(worker)
            roster.set_hearing(worker.id, worker.id in self.hearing)
        for attempt in view.live_attempts():
            job = view.job(attempt.job_id)
            roster.see_attempt(attempt, job.owner if job else "", was_live=False)
        for line in view.queued_classes():
            roster.load_line(line.class_id, line.requires, line.ranks)
        self.roster = roster
        self.limits = read_limits(view)
        self._loaded = True
        return True

    def set_hearing(self, worker_id: str, hears: bool) -> None:
        if hears:
            self.hearing.add(worker_id)
        else:
            self.hearing.discard(worker_id)
        self.roster.set_hearing(worker_id, hears)


def read_limits(view: View) -> Limits:
    stored = view.setting(LIMITS_SETTING)
    return msgspec.json.decode(stored, type=Limits) if stored else Limits()
