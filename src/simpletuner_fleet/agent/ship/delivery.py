"""Delivers final reports: each is written to disk first, and removed only when answered."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from simpletuner_fleet.agent.ship.courier import pause
from simpletuner_fleet.agent.ship.spool import Spool, Spooled
from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.errors import Refused, TokenRejected, Unreachable
from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.protocol.messages import StatusReport

log = logging.getLogger(__name__)

UNWRITTEN = 0
"""The number of a report that no file holds."""


class Delivery:
    def __init__(
        self,
        spool: Spool,
        client: OrchestratorClient,
        *,
        may_go: Callable[[Turn, StatusReport], bool] = lambda turn, report: True,
        on_delivered: Callable[[Turn], None] = lambda turn: None,
        complete: Callable[[Turn, StatusReport], None] = lambda turn, report: None,
    ) -> None:
        """Delays a report until `may_go` says that what must precede it has arrived; others pass it meanwhile.

        Call `wake` when that changes.

        `complete` adds to a report what is known only once it goes.
        """
        self._spool = spool
        self._client = client
        self._wake = asyncio.Event()
        self._backlog: list[Spooled] = []
        self._may_go, self._on_delivered, self._complete = may_go, on_delivered, complete

    async def keep(self, turn: Turn, report: StatusReport) -> None:
        try:
            record = await asyncio.to_thread(self._spool.append, turn[0], report)
        except (OSError, FleetError) as error:
            log.error(
                "the outcome of job %s is kept in memory alone: it could not be written: %s", turn[0], error
            )
            record = Spooled(number=UNWRITTEN, job_id=turn[0], report=report)
        self._backlog.append(record)
        self._wake.set()

    def load(self, incarnation: str) -> Sequence[Spooled]:
        """Loads what an agent before this one could not deliver: this one delivers it, in its own name."""
        self._backlog = self._spool.pending()
        for record in self._backlog:
            record.report.incarnation = incarnation
        return self._backlog

    def waiting(self) -> list[tuple[Turn, StatusReport]]:
        """Returns the reports that something must arrive before."""
        return [
            (Turn(record.job_id, record.report.epoch), record.report)
            for record in self._backlog
            if record.report.epoch is not None and not self._is_due(record)
        ]

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        backoff = Backoff(0.2, 5.0)
        while True:
            self._wake.clear()
            answered = await self.deliver_once()
            if answered:
                backoff.reset()
            else:
                await pause(backoff.next_s() if answered is False else None, self._wake)

    async def deliver_once(self) -> bool | None:
        """Tries the first report that may go; returns whether it was answered, None where there is none to send."""
        due = next((record for record in self._backlog if self._is_due(record)), None)
        return None if due is None else await self._deliver(due)

    def _is_due(self, record: Spooled) -> bool:
        if record.report.epoch is None:
            return True
        return self._may_go(Turn(record.job_id, record.report.epoch), record.report)

    def _put_last(self, record: Spooled) -> None:
        """Lets the others go before one that is not taken for now: what it says may be why, and that may last."""
        self._backlog.remove(record)
        self._backlog.append(record)

    async def _deliver(self, record: Spooled) -> bool:
        if record.report.epoch is not None:
            self._complete(Turn(record.job_id, record.report.epoch), record.report)
        try:
            await self._client.report(record.job_id, record.report)
        except Unreachable as error:
            if error.answered:
                self._put_last(record)
            return False
        except Refused as problem:
            if isinstance(problem, TokenRejected) or problem.passing:
                self._put_last(record)
                return False
            log.info(
                "job %s: the orchestrator has no use for this report any more: %s",
                record.job_id,
                problem.detail,
            )
        self._backlog.remove(record)
        try:
            await asyncio.to_thread(self._spool.remove, record.number)
        except OSError as error:  # the next start delivers it again, which is old news then
            log.warning("job %s: its delivered report stays on the disk: %s", record.job_id, error)
        if record.report.epoch is not None:
            self._on_delivered(Turn(record.job_id, record.report.epoch))
        return True
