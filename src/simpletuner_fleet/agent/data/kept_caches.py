"""Keeps between attempts what trainers compute from a config and its data: latents, embeddings, indices of pictures.

    caches/KEY-N.holder   the attempt that uses it now; beside the folder, which is the job's own meanwhile
    caches/KEY-N/data     the data as that attempt sees it: the trainer's indices name the pictures by their full path
    caches/KEY-N/…        whatever the trainer keeps

One attempt uses a folder at a time; a second one with the same key gets the next number. What nobody has used for a
month goes, and so does the longest unused where the disk gets full.
"""

import contextlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Lock, Thread

from simpletuner_fleet.agent.state_dir import checked_id, write_whole
from simpletuner_fleet.trainers.job_trees import entries_beneath, remove_tree

log = logging.getLogger(__name__)

HOLDER = "holder"
ASIDE = "removed-"
DATA = "data"
KEPT_S = 30 * 86400.0
FREE_BYTES = 10 * 10**9
MAX_AT_ONCE = 64
ROOM_WITHIN_S = 10.0
"""A start that may need the room waits so long while a folder is removed."""


class KeptCaches:
    """Manages the folders in which trainers keep caches between attempts. It blocks: call it in a thread."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float] = time.time,
        free_bytes: int = FREE_BYTES,
        clean: Callable[[Path], None] = lambda cache: None,
    ) -> None:
        self._folder = folder
        self._clean = clean
        self._clock = clock
        self._free_bytes = free_bytes
        self._lock = Lock()
        self._held: dict[str, Path] = {}
        """Folders by attempt."""
        self._remover: Thread | None = None
        _remove_later(list(folder.glob(f"{ASIDE}*")))
        for cache in self._caches():
            holder = _read(_holder_of(cache))
            if holder:
                self._held[holder] = cache

    def take(self, key: str, attempt_id: str) -> Path:
        """Returns the folder of this key that nobody uses, for this attempt alone.

        It is the same again for the same attempt.
        """
        with self._lock:
            if attempt_id in self._held:
                return self._held[attempt_id]
            used = set(self._held.values())
            names = (self._folder / f"{checked_id(key)}-{number}" for number in range(MAX_AT_ONCE))
            cache = next((name for name in names if name not in used), self._folder / f"{key}-{attempt_id}")
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(_holder_of(cache), attempt_id.encode())
            self._held[attempt_id] = cache
        self._let_go()
        # Whoever had it may have been killed, and the worker with them: nobody has cleaned up after them for certain.
        self._clean_or_drop(cache)
        os.utime(cache, (self._clock(), self._clock()))
        return cache

    def place_of(self, attempt_id: str) -> Path | None:
        return self._held.get(attempt_id)

    def release(self, attempt_id: str) -> None:
        """Cleans and frees the folder of an attempt that is over: whoever comes next may use what it left."""
        kept = self._held.get(attempt_id)
        if kept:
            try:
                self._clean_or_drop(kept)
            except OSError as error:  # whoever takes it next tries again
                log.warning("the caches %s could not be cleaned: %s", kept.name, error)
        with self._lock:
            cache = self._held.pop(attempt_id, None)
            if cache:
                _holder_of(cache).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    os.utime(cache, (self._clock(), self._clock()))

    def take_up(self, running: Collection[str]) -> list[Path]:
        """Learns at the start which attempts run still, and returns the folders of those that do not."""
        over = [attempt_id for attempt_id in self._held if attempt_id not in running]
        folders = [self._held[attempt_id] for attempt_id in over]
        for attempt_id in over:
            self.release(attempt_id)
        return folders

    def _clean_or_drop(self, cache: Path) -> None:
        """Cleans the cache, or replaces it by an empty one where it cannot be walked.

        What an earlier job has left keeps no later one from starting.
        """
        try:
            self._clean(cache)
            for _ in entries_beneath(cache):
                pass
        except OSError as error:
            log.warning(
                "the caches %s cannot be used any more and begin anew: %s", cache.name, error.strerror
            )
            # Nobody waits for its removal: a job may have laid it out so that it takes long.
            aside = _put_aside(cache)
            cache.mkdir(mode=0o700)
            _remove_later([aside])

    def _let_go(self) -> None:
        """Removes what nobody needs. It is waited for only a little: another job may have laid it out to take long."""
        if self._remover and self._remover.is_alive():
            return
        aside = self._next_to_go()
        if aside:
            self._remover = Thread(target=self._remove, args=(aside,), name="removing caches", daemon=True)
            self._remover.start()
            self._remover.join(ROOM_WITHIN_S)

    def _remove(self, aside: Path | None) -> None:
        while aside:
            remove_tree(aside)
            aside = self._next_to_go()

    def _next_to_go(self) -> Path | None:
        with self._lock:
            held, now = set(self._held.values()), self._clock()
            unused = sorted((cache.stat().st_mtime, cache) for cache in self._caches() if cache not in held)
            for used_at, cache in unused:
                if now - used_at > KEPT_S or shutil.disk_usage(self._folder).free < self._free_bytes:
                    with contextlib.suppress(OSError):
                        aside = _put_aside(cache)
                        hours = (now - used_at) / 3600
                        log.info("the caches %s, unused for %.0f h, were let go", cache.name, hours)
                        return aside
        return None

    def _caches(self) -> list[Path]:
        try:
            return [
                path for path in self._folder.iterdir() if path.is_dir() and not path.name.startswith(ASIDE)
            ]
        except OSError:
            return []


def _put_aside(cache: Path) -> Path:
    """Returns where it lies then: nobody finds it there, and a next start removes what is left of it."""
    return cache.rename(cache.with_name(f"{ASIDE}{secrets.token_hex(8)}"))


def _remove_later(folders: list[Path]) -> None:
    for folder in folders:
        Thread(target=remove_tree, args=(folder,), name="removing caches", daemon=True).start()


def _holder_of(cache: Path) -> Path:
    return cache.with_name(f"{cache.name}.{HOLDER}")


def _read(file: Path) -> str:
    try:
        return file.read_text("ascii", "replace").strip()
    except OSError:
        return ""
