"""Receives what a job's attempt uploads: checkpoints and artifacts, while its turn lasts and within the job's quota."""

from collections.abc import Collection, Mapping

from simpletuner_fleet.core.errors import QuotaExceeded
from simpletuner_fleet.core.jobs.fencing import Claim, Turn
from simpletuner_fleet.core.people.quotas import QuotaBook
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import View
from simpletuner_fleet.storage.fenced import newest_attempt
from simpletuner_fleet.storage.uploads.stored_quotas import storage_book, storage_refused

JOB_PARTS = "uploads"


def job_parts_folder(job_id: str) -> str:
    return f"{JOB_PARTS}/{job_id}"


class JobUploads:
    """Implements UploadOwner for one attempt.

    What it uploads belongs to the whole job, so the next attempt has it, too.
    """

    def __init__(self, fleet: Fleet, claim: Claim) -> None:
        self._fleet = fleet
        self._claim = claim

    @property
    def folder(self) -> str:
        return job_parts_folder(self._claim.job_id)

    @property
    def direct_job(self) -> str:
        return self._claim.job_id

    @property
    def turn(self) -> Turn:
        return self._claim.turn

    async def stored(self, shas: Collection[str]) -> Mapping[str, int]:
        def look(view: View) -> dict[str, int]:
            newest_attempt(view, self._claim)
            return view.objects_of_job(self._claim.job_id, shas)

        return await (self._fleet.read_now if len(shas) == 1 else self._fleet.read)(look)

    async def check_room(self, more_bytes: int) -> None:
        book = storage_book(self._fleet.organisation)
        await self._fleet.read(lambda view: self._check_room(view, book, more_bytes))

    async def check_turn(self) -> None:
        await self._fleet.read_now(lambda view: newest_attempt(view, self._claim))

    async def own(self, sha256: str, size: int) -> None:
        def step(transaction: Transaction) -> None:
            newest_attempt(transaction.tx, self._claim)
            self._check_room(transaction.tx, storage_book(transaction.organisation), size)
            transaction.tx.own_object(self._claim.job_id, sha256, size, transaction.now)

        await self._fleet.act(step)

    def _check_room(self, view: View, book: QuotaBook | None, more_bytes: int) -> None:
        allowed = self._fleet.policy.job_storage_bytes
        if view.stored_bytes_of_job(self._claim.job_id) + more_bytes > allowed:
            raise QuotaExceeded(f"One job can store at most {allowed} bytes.", quota_bytes=allowed)
        if book is not None or self._fleet.policy.user_storage_bytes is not None:
            self._check_owners(view, book, more_bytes)

    def _check_owners(self, view: View, book: QuotaBook | None, more_bytes: int) -> None:
        """Checks what all jobs of the owner, or of their team, have stored."""
        job = view.job(self._claim.job_id)
        if job is None:
            return
        allowed = self._fleet.policy.user_storage_bytes
        if allowed is not None and (stored_bytes := view.stored_bytes_of(job.owner)) + more_bytes > allowed:
            raise QuotaExceeded(
                f"One user's jobs can store at most {allowed} bytes; {stored_bytes} are in use.",
                next_step="Delete files of old jobs, or ask for a higher SIMPLETUNER_USER_STORAGE_GB.",
                quota_bytes=allowed,
            )
        full = storage_refused(view, book, job, more_bytes) if book else None
        if full is not None:
            quota, taken = full.quota, full.used
            raise QuotaExceeded(
                f"The quota {quota.id} allows {quota.ceiling:.0f} stored bytes; {taken} are taken.",
                next_step="Delete what old jobs stored, or ask an administrator for a higher quota.",
                quota_bytes=int(quota.ceiling),
            )
