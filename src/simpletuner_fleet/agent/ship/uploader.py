"""Uploads one attempt's checkpoints and results to the orchestrator while its trainer works, and at its end.

Files are named by their content and sent in parts from wherever the orchestrator has them; the manifest goes last, so
half a checkpoint is never taken for a whole one.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from simpletuner_fleet.agent.ship.courier import MOST_WHY_CHARS, Courier, RetryRule, Sent
from simpletuner_fleet.agent.ship.direct import DirectOutcome, DirectSender
from simpletuner_fleet.agent.ship.hashing import HashCache, HashingStopped
from simpletuner_fleet.agent.ship.late_files import LateFiles, fingerprint
from simpletuner_fleet.agent.ship.sample_watch import SampleFile, SampleWatch
from simpletuner_fleet.agent.ship.sendable import sendable
from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.bandwidth import Bandwidth, PartSize
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.errors import Refused, Unreachable
from simpletuner_fleet.agent.wire.part_connections import FileShrunk, Part
from simpletuner_fleet.core.cutting import excerpt, first_few
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.training.checkpoint import FileEntry, Manifest
from simpletuner_fleet.core.training.samples import SAMPLES
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.protocol.uploads import ManifestAnswer, Note, ObjectAsked
from simpletuner_fleet.trainers.checkpoints import (
    CheckpointHabits,
    FoundArtifact,
    FoundCheckpoint,
    files_beneath,
)
from simpletuner_fleet.trainers.contract import Paths
from simpletuner_fleet.trainers.job_files import LACKING, PASSING, LeadsOut

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
PATIENCE_S = 120.0
"""How long an attempt that ended waits for an orchestrator that answers and takes nothing."""
MOST_FILES, MOST_NAMED = 10_000, 3
MOST_ARTIFACT_BYTES = 200 * 2**30
TRIES_WHILE_CHANGING = 5
BATCH_BYTES = 64 * 2**20
PASSING_CODES = frozenset({"objects_missing", "quota_exceeded", "storage_full"})
"""The last two an administrator can mend, while the files wait here."""
HASHERS = ThreadPoolExecutor(4, "hashing")
"""Of its own: gigabytes that jobs have left keep nobody from starting."""
LIVE_SAMPLES = "live samples"
"""No artifact can have this name: what cannot be shown on the way may still be sent at the end."""


class _Unsteady(Exception):
    """A file changed during every try to send it."""


class Uploader:
    """Uploads the checkpoints and results of one attempt.

    It is `over` once nothing more will be sent; until then a final report should wait.
    """

    def __init__(
        self,
        offer: JobSubmit,
        paths: Paths,
        habits: CheckpointHabits,
        client: OrchestratorClient,
        bandwidth: Bandwidth,
        *,
        resumed_from: int | None = None,
        patience_s: float = PATIENCE_S,
        look_every_s: float = LOOK_EVERY_S,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
        samples: SampleWatch | None = None,
    ) -> None:
        self._job_id, self._epoch = offer.job_id, offer.epoch
        self.paths, self.habits = paths, habits
        self._client, self._bandwidth, self._part_size = client, bandwidth, PartSize(bandwidth)
        self._clock = clock
        self.checkpoint_step = resumed_from
        """The newest that the orchestrator has whole."""
        self.spoiled_from: int | None = None
        """A watchdog found the training spoiled from this step on."""
        self.on_stored: Callable[[int], None] = lambda step: None
        self.before_stored: Callable[[], Awaitable[None]] = _at_once
        """What must be safe before a checkpoint is: whoever goes on from it has nothing else."""
        self._with_artifacts = True
        self._hashes = HashCache()
        self._settled: set[str] = set()
        """Names that need no more thought: sent, or impossible to send."""
        self._not_found: Counter[str] = Counter()
        """How often in a row files of it were gone when it was to be sent."""
        self._not_read: Counter[str] = Counter()
        self.stored_something = False
        self._late = LateFiles()
        self._bound_reported = False
        self.not_sent: dict[str, str] = {}
        """What was given up for good, and why."""
        self._samples = samples or SampleWatch()
        self._shown: dict[SampleFile, list[FileEntry]] = {}
        self._courier = Courier(
            f"job {self._job_id}: its uploads",
            self._send_all,
            RetryRule(patience_s=patience_s, nonsense_is_absence=False, passing_codes=PASSING_CODES),
            client.hearings,
            look_every_s=look_every_s,
            backoff=backoff,
            clock=clock,
        )
        self._direct = DirectSender(
            client, Turn(offer.job_id, offer.epoch), bandwidth, self._courier.went_well, self.over.is_set
        )

    @property
    def over(self) -> asyncio.Event:
        return self._courier.over

    @property
    def left_something(self) -> bool:
        """Tells whether something that was wanted is nowhere but here."""
        return bool(self.not_sent) or self._courier.gave_up is not None

    @property
    def cut_short(self) -> bool:
        return self._courier.cut_short

    @property
    def trouble(self) -> str:
        """Tells what keeps something from being sent: now, or for good."""
        if self._courier.trouble or self._courier.gave_up:
            return str(self._courier.trouble or self._courier.gave_up)
        return first_few((f"{name}: {why}" for name, why in self.not_sent.items()), MOST_NAMED)

    def trainer_ended(self, *, with_artifacts: bool, patience_s: float | None = None) -> None:
        """Sends, from now on, only what is there. An attempt that goes on elsewhere leaves no results."""
        self._with_artifacts = with_artifacts
        self._courier.trainer_ended(patience_s)

    def stop(self) -> None:
        self._courier.stop()

    async def run(self) -> None:
        """Returns when the trainer has ended and all is sent, the attempt is stale, or it is told to stop."""
        with contextlib.suppress(HashingStopped):
            await self._courier.run()

    async def send_once(self) -> bool:
        """Looks once and sends what it finds. Returns False when nothing is left to do, now and ever."""
        return await self._courier.send_once()

    async def _send_all(self, ended: bool) -> Sent:
        waiting = await asyncio.to_thread(self._next)
        if waiting is not None:
            await self._try(waiting.name, self._send_checkpoint(waiting))
            if following := await asyncio.to_thread(self._next):
                # One that is listed still may be about to be removed: it is not tried again at once.
                return Sent.ALL if following.name == waiting.name else Sent.MORE
        if not ended:
            await self._send_late(ended)
            if self._samples.is_due():
                await self._show_samples()
            return Sent.ALL
        if await asyncio.to_thread(self._is_more_to_come):
            return Sent.ALL
        await self._send_late(ended)
        return await self._send_results()

    async def _send_results(self) -> Sent:
        artifacts = []
        if self._with_artifacts:
            try:
                artifacts = await asyncio.to_thread(self.habits.artifacts, self.paths)
            except OSError as error:
                self._could_not_read("output", error)
        for artifact in artifacts:
            if artifact.name not in self._settled:
                await self._try(artifact.name, self._send_artifact(artifact))
        if any(artifact.name not in self._settled for artifact in artifacts):
            return Sent.ALL
        if all(artifact.name != SAMPLES for artifact in artifacts):
            await self._show_samples(last=True)
        return Sent.DONE

    async def _show_samples(self, *, last: bool = False) -> None:
        if LIVE_SAMPLES not in self._settled:
            await self._try(LIVE_SAMPLES, self._send_samples(last), may_wait=False)

    async def _try(self, name: str, sending: Awaitable[None], *, may_wait: bool = True) -> None:
        """Sends, or says once that it cannot be sent, now or later; what may not wait is not tried until an admin helps."""
        try:
            await sending
            del self._not_found[name]
        except FileNotFoundError as error:
            log.debug("job %s: %s was removed before it was sent", self._job_id, name)
            self._not_found[name] += 1
            if isinstance(error, LeadsOut) or self._not_found[name] == TRIES_WHILE_CHANGING:
                self._give_up(name, str(error))
        except (OSError, _Unsteady) as error:
            self._could_not_read(name, error)
        except Refused as problem:
            waits = _may_pass(problem) if may_wait else problem.passing or problem.code == "objects_missing"
            if waits or problem.code == "stale_attempt":
                raise
            self._give_up(name, problem.detail)

    def _could_not_read(self, name: str, error: OSError | _Unsteady) -> None:
        """Gives it up, or raises what the next try may end; where that may be one file's own trouble, a few times."""
        if isinstance(error, OSError) and error.errno in PASSING:
            self._not_read[name] += error.errno not in LACKING
            if self._not_read[name] < TRIES_WHILE_CHANGING:
                raise error
        self._give_up(name, str(error))

    def _next(self) -> FoundCheckpoint | None:
        """Returns the oldest that was not sent: each was asked for.

        One that goes on elsewhere has time for the newest alone.
        """
        stored = -1 if self.checkpoint_step is None else self.checkpoint_step
        waiting = [
            one
            for one in self.habits.checkpoints(self.paths)
            if one.name not in self._settled and not self._is_spoiled(one) and self._may_follow(one, stored)
        ]
        if not waiting:
            return None
        return waiting[0] if self._with_artifacts else waiting[-1]

    def _may_follow(self, one: FoundCheckpoint, stored: int) -> bool:
        """Returns whether a checkpoint may follow what is stored: steps only rise.

        A rolling checkpoint may have the step of another one of this attempt.
        """
        return one.step > stored or (one.step == stored and self._late.has_sent_step(one.step))

    def _is_more_to_come(self) -> bool:
        return self._next() is not None or self.habits.has_unfinished(self.paths)

    async def _send_late(self, ended: bool) -> None:
        """Sends again what a checkpoint has grown by since: pictures are added after it is finished."""
        for checkpoint in await asyncio.to_thread(self._late.grown, ended):
            await self._try(checkpoint.name, self._send_checkpoint(checkpoint))

    def _is_spoiled(self, checkpoint: FoundCheckpoint) -> bool:
        return self.spoiled_from is not None and checkpoint.step >= self.spoiled_from

    async def _send_checkpoint(self, checkpoint: FoundCheckpoint) -> None:
        began = self._clock()
        files = await asyncio.to_thread(lambda: list(files_beneath(checkpoint.path, checkpoint.path)))
        looked = await asyncio.to_thread(fingerprint, files)
        files = await self._sendable(checkpoint.name, checkpoint.path, files)
        entries = await self._send_files(checkpoint.path, files)
        await self.before_stored()
        if self._is_spoiled(checkpoint):
            return
        keep = await asyncio.to_thread(self.habits.keeps, self.paths, checkpoint.name)
        manifest = Manifest(
            kind="checkpoint", name=checkpoint.name, step=checkpoint.step, files=tuple(entries), keep=keep
        )
        answer = await self._commit(manifest)
        self._settled.add(checkpoint.name)
        self._late.was_sent(checkpoint, looked)
        if checkpoint.step >= (self.checkpoint_step or 0):
            self.checkpoint_step = checkpoint.step
            self.on_stored(checkpoint.step)
        await self._tell_bound(keep, answer.checkpoints_keep)
        took_s = self._clock() - began
        log.info("job %s: %s is safe (%s in %.1f s)", self._job_id, checkpoint.name, _amount(entries), took_s)

    async def _send_artifact(self, artifact: FoundArtifact) -> None:
        files = await self._sendable(artifact.name, artifact.root, artifact.files)
        files = await asyncio.to_thread(self._within_limits, artifact.name, files)
        if artifact.missed:
            self._leave_out(artifact.name, artifact.missed)
        entries = await self._send_files(artifact.root, files)
        if entries:
            await self._commit(
                Manifest(kind="artifact", name=artifact.name, step=self.checkpoint_step, files=tuple(entries))
            )
            log.info("job %s: %s is stored (%s)", self._job_id, artifact.name, _amount(entries))
        self._settled.add(artifact.name)

    async def _send_samples(self, last: bool) -> None:
        """Sends all that are whole, as one artifact that grows. They stand back as soon as a checkpoint waits."""
        root = self.habits.output_folder(self.paths)
        samples = await asyncio.to_thread(
            self._samples.look, lambda: self.habits.samples(self.paths), root, last=last
        )
        for sample in samples:
            if sample not in self._shown and not (await asyncio.to_thread(sendable, root, [sample.path]))[0]:
                self._shown[sample] = []  # at the end it is told with the other results
            if sample not in self._shown:
                if not last and await asyncio.to_thread(self._next) is not None:
                    return
                try:
                    self._shown[sample] = await self._send_files(root, [sample.path])
                except _Unsteady:
                    return
        self._shown = {sample: self._shown[sample] for sample in samples} if samples else self._shown
        entries = sorted(
            (entry for sample in samples for entry in self._shown[sample]), key=lambda entry: entry.path
        )
        if entries:
            await self._commit_samples(entries)
            self._samples.were_sent()

    async def _commit_samples(self, entries: Sequence[FileEntry]) -> None:
        try:
            await self._commit(
                Manifest(kind="artifact", name=SAMPLES, step=self.checkpoint_step, files=tuple(entries))
            )
        except Refused as problem:
            if problem.code == "objects_missing":
                self._shown.clear()
            raise

    def _within_limits(self, name: str, candidates: Sequence[Path]) -> list[Path]:
        files: list[Path] = []
        total = 0
        for file in candidates:
            total += file.stat().st_size
            if len(files) == MOST_FILES or total > MOST_ARTIFACT_BYTES:
                kept_back = len(candidates) - len(files)
                self._leave_out(
                    name,
                    f"{kept_back} of its {len(candidates)} files are more than an artifact may have "
                    f"({MOST_FILES} files, {MOST_ARTIFACT_BYTES // 2**30} GB)",
                )
                break
            files.append(file)
        return files

    async def _send_files(self, root: Path, files: Sequence[Path]) -> list[FileEntry]:
        for _ in range(TRIES_WHILE_CHANGING):
            entries = await self._send_steady(root, files)
            if entries is not None:
                return entries
        raise _Unsteady("it changes all the time")

    async def _send_steady(self, root: Path, files: Sequence[Path]) -> list[FileEntry] | None:
        """Returns None where a file is not what its digest was taken of. The next few are read while some are sent."""
        batches = await asyncio.to_thread(_in_batches, files)
        entries: list[FileEntry] = []
        hashing = self._hashed(root, batches[0] if batches else [])
        try:
            for following in [*batches[1:], []]:
                ready = await hashing
                hashing = self._hashed(root, following)
                entries += ready
                if not await self._send_missing(root, ready):
                    return None
            return sorted(entries, key=lambda entry: entry.path)
        finally:
            # Threads are not called back: what this one finds is known to the next try.
            await asyncio.wait({hashing})
            if not hashing.cancelled():
                hashing.exception()

    def _hashed(self, root: Path, files: Sequence[Path]) -> "asyncio.Future[list[FileEntry]]":
        entries = partial(self._hashes.entries, root, files, self.over.is_set)
        return asyncio.get_running_loop().run_in_executor(HASHERS, entries)

    async def _sendable(self, name: str, root: Path, files: Sequence[Path]) -> list[Path]:
        fit, complaint = await asyncio.to_thread(sendable, root, files)
        if complaint:
            self._leave_out(name, complaint)
        return fit

    def _leave_out(self, name: str, why: str) -> None:
        """Records files that cannot be sent. The rest is sent."""
        complaints = self.not_sent.get(name, "")
        if why not in complaints:
            self.not_sent[name] = excerpt(f"{complaints}; {why}" if complaints else why, MOST_WHY_CHARS)
            log.warning("job %s: %s: %s", self._job_id, name, why)

    async def _send_missing(self, root: Path, entries: Iterable[FileEntry]) -> bool:
        by_content = {entry.sha256: entry for entry in entries}
        objects = [ObjectAsked(sha256=sha256, size=entry.size) for sha256, entry in by_content.items()]
        if not objects:
            return True
        answer = await self._client.missing_objects(self._job_id, self._epoch, objects)
        for missing in answer.missing:
            entry = by_content.get(missing.sha256)
            if entry is None:
                continue
            way = DirectOutcome.ELSEWHERE
            if answer.direct and not missing.offset and self._direct.may_try(entry):
                way = await self._send_direct(root / entry.path, entry)
            if way is DirectOutcome.ELSEWHERE and await self._send_object(
                root / entry.path, entry, missing.offset
            ):
                way = DirectOutcome.STORED
            if way is not DirectOutcome.STORED:
                return False
        return True

    async def _send_direct(self, file: Path, entry: FileEntry) -> DirectOutcome:
        way = await self._direct.send(file, entry)
        if way is DirectOutcome.CHANGED:
            self._hashes.forget(file)
        if self._direct.trouble:
            await self._tell_detour(self._direct.trouble)
            self._direct.trouble = ""
        return way

    async def _tell_detour(self, why: str) -> None:
        text = (
            f"this worker cannot send files straight to the storage ({why[:MOST_WHY_CHARS]}): "
            "they go through the orchestrator for a while"
        )
        note = Note(id="storage-unreachable", at=time.time(), kind="storage_unreachable", text=text)
        with contextlib.suppress(Unreachable, Refused):
            await self._client.send_notes(self._job_id, self._epoch, [note])

    async def _send_object(self, file: Path, entry: FileEntry, offset: int) -> bool:
        """Returns False where the file is not what it was when its digest was taken."""
        whole_object = ObjectAsked(sha256=entry.sha256, size=entry.size)
        while True:
            if self.over.is_set():
                raise HashingStopped
            if not 0 <= offset <= entry.size:
                raise Unreachable(ValueError(f"the orchestrator wants byte {offset}"), refused=False)
            part = Part(file=file, offset=offset, count=min(self._part_size.bytes, entry.size - offset))
            await self._bandwidth.take(part.count)
            began = self._clock()
            try:
                answer = await self._client.put_part(self._job_id, self._epoch, whole_object, part)
            except Unreachable:
                self._part_size.broke()
                raise
            except (Refused, FileShrunk) as problem:
                if isinstance(problem, Refused) and problem.code != "digest_mismatch":
                    raise
                self._hashes.forget(file)
                return False
            self._part_size.took(part.count, self._clock() - began)
            self._courier.went_well()
            if answer.complete:
                return True
            offset = answer.next_offset

    async def _commit(self, manifest: Manifest) -> ManifestAnswer:
        answer = await self._client.send_manifest(self._job_id, self._epoch, manifest)
        self.stored_something = True
        self._courier.went_well()
        return answer

    async def _tell_bound(self, asked: int | None, bound: int | None) -> None:
        """Says once that the server keeps fewer than the config asks for: nobody is to find out when they are gone."""
        if asked is None or bound is None or asked <= bound or self._bound_reported:
            return
        self._bound_reported = True
        text = (
            f"the config keeps {asked} checkpoints, this server the newest {bound} of each job "
            "(SIMPLETUNER_CHECKPOINTS_KEEP)"
        )
        log.warning("job %s: %s", self._job_id, text)
        note = Note(id="checkpoints-bounded", at=time.time(), kind="checkpoints_bounded", text=text)
        with contextlib.suppress(Unreachable, Refused):
            await self._client.send_notes(self._job_id, self._epoch, [note])

    def _give_up(self, name: str, reason: str) -> None:
        self._settled.add(name)
        if name != LIVE_SAMPLES:
            self.not_sent[name] = excerpt(reason, MOST_WHY_CHARS)
        log.warning("job %s: %s is not sent: %s", self._job_id, name, reason)


async def _at_once() -> None:
    return None


def _may_pass(problem: Refused) -> bool:
    return problem.passing or problem.code in PASSING_CODES


def _in_batches(files: Sequence[Path]) -> list[list[Path]]:
    """Returns batches, each worth about one request. The smallest files come first, so that sending begins soon."""
    batches: list[list[Path]] = []
    batch_bytes = 0
    for size, file in sorted((file.stat().st_size, file) for file in files):
        if not batches or batch_bytes + size > BATCH_BYTES:
            batches.append([])
            batch_bytes = 0
        batches[-1].append(file)
        batch_bytes += size
    return batches


def _amount(entries: Sequence[FileEntry]) -> str:
    return f"{len(entries)} files, {sum(entry.size for entry in entries) / 1e6:.1f} MB"
