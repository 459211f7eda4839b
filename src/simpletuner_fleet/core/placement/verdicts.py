"""Caches what each worker could do for a queue of jobs, until the worker or what it holds changes.

Lists ask the whole fleet why jobs wait, several times a second where many people look. Between two looks a few workers
change, not two thousand.
"""

from collections.abc import Iterable

from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.core.money.prices import NO_PRICES, PriceList
from simpletuner_fleet.core.placement.matching import Occupancy, Refusal, why_not_now
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.workers.worker import Worker

Verdict = tuple[Worker, Occupancy, Refusal | None]
MOST_KEPT = 200_000
"""Verdicts of all lines together, some 30 MB."""


class Verdicts:
    """Tells whether each worker could take a job with these requirements now, and if not, why."""

    def __init__(
        self,
        requires: Requirements,
        refused_by: tuple[str, ...] = (),
        allowlist: TeamAllowlist | None = None,
        prices: PriceList = NO_PRICES,
    ) -> None:
        self.requires = requires
        self._refused_by = frozenset(refused_by)
        self.allowlist = allowlist
        self.prices = prices
        self._kept: dict[str, Verdict] = {}

    def holds_for(self, asked: "Verdicts") -> bool:
        """Tells whether these are true for what is asked now: by the same rules, and with no further refusal."""
        return (
            self.allowlist is asked.allowlist
            and self.prices is asked.prices
            and self._refused_by == asked._refused_by
        )

    def of(self, workers: Iterable[tuple[Worker, Occupancy]]) -> list[Verdict]:
        """Returns the verdicts in the order of the workers, and keeps none of other workers."""
        before, verdicts = self._kept, []
        for worker, occupancy in workers:
            verdict = before.get(worker.id)
            if verdict is None or verdict[0] is not worker or verdict[1] != occupancy:
                refusal = why_not_now(
                    worker, occupancy, self.requires, self._refused_by, self.allowlist, self.prices
                )
                verdict = (worker, occupancy, refusal)
            verdicts.append(verdict)
        self._kept = {verdict[0].id: verdict for verdict in verdicts}
        return verdicts

    def __len__(self) -> int:
        return len(self._kept)


class KnownVerdicts:
    """Caches verdicts by queue of jobs.

    Those that were asked for longest ago are forgotten first.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._lines: dict[str, Verdicts] = {}

    def of_line(self, line: str, asked: Verdicts) -> Verdicts:
        """Returns the cached verdicts of the queue, or `asked` where there are none that still hold."""
        # Looks may run in several threads: each step is one that is whole by itself.
        known = self._lines.pop(line, None)
        if known is None or not known.holds_for(asked):
            known = asked
        self._lines[line] = known
        kept = list(self._lines.items())
        left = sum(len(verdicts) for _, verdicts in kept)
        for oldest, verdicts in kept[:-1]:
            if left <= self._most:
                break
            left -= len(verdicts)
            self._lines.pop(oldest, None)
        return known
