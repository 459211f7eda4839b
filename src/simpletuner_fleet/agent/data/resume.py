"""Puts a checkpoint in place before a trainer starts: it is fetched, verified, and visible only when it is whole.

What this machine has already, from an attempt of the same job, is not fetched again.
"""

import asyncio
import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from simpletuner_fleet.agent.data.downloads import (
    PATIENCE_S,
    ContentSource,
    DownloadFailed,
    Downloads,
    DownloadStalled,
)
from simpletuner_fleet.agent.ship.hashing import sha256_of
from simpletuner_fleet.core.training.checkpoint import NAME, SHA256, FileEntry, path_complaint
from simpletuner_fleet.core.worker_errors import ResumeFailed, ResumeUnreadable
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.protocol.uploads import Resume
from simpletuner_fleet.trainers.job_files import PASSING

log = logging.getLogger(__name__)

TRIES_AT_A_FILE = 3
SPARE_BYTES = 64 * 1024 * 1024


def read_resume(description: dict[str, Any]) -> Resume:
    """Reads the checkpoint's description, and raises ResumeUnreadable for a bad one.

    Whatever the orchestrator says, no file lands outside its folder.
    """
    try:
        resume = msgspec.convert(description, Resume)
    except msgspec.ValidationError as error:
        raise ResumeUnreadable(
            f"the checkpoint to go on from is not described as it should be: {error}"
        ) from error
    if not NAME.fullmatch(resume.name):
        raise ResumeUnreadable(f"{resume.name[:200]!r} cannot name a checkpoint")
    for file in resume.files:
        complaint = path_complaint(file.path)
        if complaint or not SHA256.fullmatch(file.sha256) or file.size < 0:
            raise ResumeUnreadable(
                f"a file of {resume.name} cannot be placed: {complaint or 'no digest or size'}"
            )
    return resume


def resumed_from(offer: JobSubmit) -> int | None:
    """Returns the step an attempt goes on from, if it does."""
    return read_resume(offer.resume).step if offer.resume else None


class CheckpointFetcher:
    def __init__(
        self,
        client: ContentSource,
        job_id: str,
        making: Path,
        *,
        nearby: Sequence[Path] = (),
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`making` is where the checkpoint grows; `nearby` are folders that may hold the same files already."""
        self._job_id = job_id
        self._making = making
        self._nearby = nearby
        self._downloads = Downloads(
            lambda sha256, offset: client.fetch_object(job_id, sha256, offset),
            patience_s=patience_s,
            clock=clock,
        )
        self._left = False

    async def place(self, resume: Resume, folder: Path) -> Path:
        """Puts the whole checkpoint into its folder, which it returns. Raises ResumeFailed.

        Raises OSError for what this machine lacks, such as room: the checkpoint is not to blame.
        """
        final = folder / resume.name
        try:
            await asyncio.to_thread(self._make_room, resume.files)
            for file in resume.files:
                await self._get(file)
            await asyncio.to_thread(self._move_to, final)
        except OSError as error:
            if error.errno in PASSING:
                raise
            raise ResumeFailed(f"{resume.name} could not be written: {error.strerror or error}") from error
        finally:
            self._left = True
        log.info("job %s: %s is in place, to go on from step %d", self._job_id, resume.name, resume.step)
        return final

    def _make_room(self, files: Sequence[FileEntry]) -> None:
        self._making.mkdir(mode=0o700, parents=True, exist_ok=True)
        needed = sum(file.size for file in files) + SPARE_BYTES
        free = shutil.disk_usage(self._making).free
        if free < needed:
            why = f"the checkpoint needs {needed / 1e9:.1f} GB on this worker, which has {free / 1e9:.1f} GB free"
            raise OSError(errno.ENOSPC, why)

    def _move_to(self, final: Path) -> None:
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            shutil.rmtree(final)
        shutil.move(self._making, final)

    async def _get(self, file: FileEntry) -> None:
        target = self._making / file.path
        if await asyncio.to_thread(self._take_from_nearby, file, target):
            return
        for _ in range(TRIES_AT_A_FILE):
            await self._fetch(file, target)
            if await asyncio.to_thread(self._is_right, target, file):
                return
            log.warning("job %s: %s arrived damaged and is fetched again", self._job_id, file.path)
            await asyncio.to_thread(target.unlink)
        raise ResumeFailed(f"{file.path} arrived damaged {TRIES_AT_A_FILE} times")

    def _take_from_nearby(self, file: FileEntry, target: Path) -> bool:
        target.parent.mkdir(parents=True, exist_ok=True)
        for folder in self._nearby:
            known = folder / file.path
            try:
                if known.is_symlink() or known.stat().st_size != file.size:
                    continue
                if not self._is_right(known, file):
                    continue
                target.unlink(missing_ok=True)
                try:
                    os.link(known, target)
                except OSError:
                    shutil.copyfile(known, target)
                    return self._is_right(target, file)
            except OSError:
                continue
            return True
        return False

    def _is_right(self, path: Path, file: FileEntry) -> bool:
        return sha256_of(path, lambda: self._left) == (file.sha256, file.size)

    async def _fetch(self, file: FileEntry, target: Path) -> None:
        try:
            await self._downloads.fetch(file.sha256, file.size, target, file.path)
        except DownloadStalled as error:
            raise ResumeFailed(f"the checkpoint to go on from could not be fetched: {error}") from error
        except DownloadFailed as error:
            raise ResumeFailed(str(error)) from error
