"""Sends one large file straight to the storage, a few parts at a time, each by a link of its own.

After a restart of the agent or the orchestrator it goes on with the parts that are missing. If that fails, the file
goes through the orchestrator instead; the caller is told which it was.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path

from simpletuner_fleet.agent.ship.hashing import CHUNK_BYTES, HashingStopped
from simpletuner_fleet.agent.wire.bandwidth import Bandwidth
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.direct_connections import DirectFailed
from simpletuner_fleet.agent.wire.errors import Refused
from simpletuner_fleet.agent.wire.part_connections import FileShrunk, Part
from simpletuner_fleet.core.errors import DirectUnavailable
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.core.training.direct import (
    LEAST_BYTES,
    LEAST_PART_BYTES,
    MOST_BYTES,
    MOST_PART_BYTES,
    Staging,
)
from simpletuner_fleet.protocol.uploads import DirectAnswer, DirectPart
from simpletuner_fleet.trainers.job_files import open_job_file

AT_ONCE = 3
TRIES_AT_A_PART = 2
ROUNDS = 3
"""So often parts that have not arrived are sent again before the file goes another way."""
NOT_HERE = frozenset({DirectUnavailable.code, "not_found", "method_not_allowed"})


class DirectOutcome(StrEnum):
    """Tells what became of a file that was to go straight to the storage."""

    STORED = "stored"
    CHANGED = "changed"
    """It is not what it was when its digest was taken."""
    ELSEWHERE = "elsewhere"
    """It has to go through the orchestrator."""


class _GoElsewhere(Exception):
    pass


class DirectSender:
    """Sends large files of one attempt straight to the storage."""

    def __init__(
        self,
        client: OrchestratorClient,
        turn: Turn,
        bandwidth: Bandwidth,
        went_well: Callable[[], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._client = client
        self._turn = turn
        self._bandwidth = bandwidth
        self._went_well = went_well
        self._is_over = is_over
        self.trouble = ""
        """Why the way was left."""

    def may_try(self, entry: FileEntry) -> bool:
        return self._client.direct.is_open and LEAST_BYTES <= entry.size <= MOST_BYTES

    async def send(self, file: Path, entry: FileEntry) -> DirectOutcome:
        """Raises what any call to the orchestrator does, and OSError where the file cannot be read."""
        try:
            return await self._send(file, entry)
        except _GoElsewhere:
            return DirectOutcome.ELSEWHERE
        except FileShrunk:
            return DirectOutcome.CHANGED
        except Refused as problem:
            if problem.code == "digest_mismatch":
                return DirectOutcome.CHANGED
            if problem.code in NOT_HERE:
                return DirectOutcome.ELSEWHERE
            raise

    async def _send(self, file: Path, entry: FileEntry) -> DirectOutcome:
        for _ in range(ROUNDS):
            answer = await self._client.ask_direct(
                self._turn, entry.sha256, entry.size, part_bytes=self._bandwidth.part_bytes
            )
            if answer.complete:
                return DirectOutcome.STORED
            staging = self._staging(entry, answer)
            missing = [one for one in range(1, staging.part_count + 1) if one not in answer.have]
            await self._send_parts(file, staging, missing)
            if (await self._client.end_direct(self._turn, entry.sha256, entry.size)).complete:
                self._went_well()
                return DirectOutcome.STORED
        self._leave("parts that were sent do not arrive")
        raise _GoElsewhere

    def _staging(self, entry: FileEntry, answer: DirectAnswer) -> Staging:
        if not LEAST_PART_BYTES <= answer.part_bytes <= MOST_PART_BYTES:
            raise _GoElsewhere
        return Staging(
            job_id=self._turn.job_id,
            epoch=self._turn.epoch,
            sha256=entry.sha256,
            size=entry.size,
            part_bytes=answer.part_bytes,
        )

    async def _send_parts(self, file: Path, staging: Staging, numbers: list[int]) -> None:
        """Sends these parts. The first failure ends it, once what is under way has ended."""
        waiting = iter(numbers)
        results = await asyncio.gather(
            *(self._send_some(file, staging, waiting) for _ in range(AT_ONCE)), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _send_some(self, file: Path, staging: Staging, waiting: Iterator[int]) -> None:
        for number in waiting:
            try:
                await self._send_part(file, staging, number)
            except BaseException:
                # The others find nothing more to begin with.
                for _ in waiting:
                    pass
                raise

    async def _send_part(self, file: Path, staging: Staging, number: int) -> None:
        offset, count = (number - 1) * staging.part_bytes, staging.part_size(number)
        sha256 = await asyncio.to_thread(_digest_of_part, file, offset, count, self._is_over)
        failure = ""
        for _ in range(TRIES_AT_A_PART):
            if self._is_over():
                raise HashingStopped
            # A link that has run out is no trouble: the next one is fresh.
            link = await self._client.ask_direct(
                self._turn, staging.sha256, staging.size, part=DirectPart(number=number, sha256=sha256)
            )
            if not link.url:
                raise _GoElsewhere
            await self._bandwidth.take(count)
            try:
                await self._client.direct.put(
                    link.url, link.headers, Part(file=file, offset=offset, count=count)
                )
            except DirectFailed as error:
                failure = str(error)
            else:
                self._went_well()
                return
        self._leave(failure)
        raise _GoElsewhere

    def _leave(self, why: str) -> None:
        if self._client.direct.is_open:
            self.trouble = why
            self._client.direct.leave(why)


def _digest_of_part(path: Path, offset: int, count: int, interrupted: Callable[[], bool]) -> str:
    """Raises FileShrunk where the file has become shorter."""
    digest, left = hashlib.sha256(), count
    with open_job_file(path) as file:
        file.seek(offset)
        while left and (chunk := file.read(min(CHUNK_BYTES, left))):
            if interrupted():
                raise HashingStopped
            digest.update(chunk)
            left -= len(chunk)
    if left:
        raise FileShrunk
    return digest.hexdigest()
