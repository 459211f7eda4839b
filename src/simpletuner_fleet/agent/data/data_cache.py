"""Caches datasets on the worker's disk: each content once, verified by SHA-256, the least recently used evicted.

    guarded              no job could write here since all were verified
    datasets/ID.json     the manifest; its time of change is when it was last used
    datasets/ID.whole    all of its files were here and safely on the disk
    objects/ab/SHA256    a file's content, read-only
    parts/SHA256         content on its way
    views/ATTEMPT/NAME   what a trainer sees: folders of its own, files linked to the content

A verified file carries one fixed time of change. Whoever writes into it changes that, and the file is read again and
fetched anew before the next trainer sees it. Where jobs run behind no wall they could set that time back, so there every
file is read again for every job (`guard`). What no write shows, such as a disk that forgets, is not seen.
"""

import contextlib
import ctypes
import fcntl
import logging
import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from simpletuner_fleet.agent.ship.hashing import sha256_of
from simpletuner_fleet.agent.state_dir import checked_id, write_whole
from simpletuner_fleet.core.configs.datasets import MAX_HELD, MOUNT, canonical, id_of, read_manifest
from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.training.checkpoint import SHA256, FileEntry
from simpletuner_fleet.core.worker_errors import (
    CacheFull,
    CacheInUse,
    CacheTooSmall,
    CacheUnusable,
    StateDirError,
)
from simpletuner_fleet.trainers.job_trees import entries_beneath, remove_tree

log = logging.getLogger(__name__)

VERIFIED_NS = 1_000_000_000 * 10**9
"""The time of change of a file that was found right."""
READ_ONLY = 0o444
VIEWED = 0o755
"""A job may run as another user. Nobody else comes so far: the cache's own folder is closed."""
USUAL_LIMIT_BYTES = 100 * 10**9
SHARE_OF_FREE = 0.8
SPARE_BYTES = 256 * 1024 * 1024
POLICY = Policy()
Manifests = dict[str, tuple[FileEntry, ...]]
"""Files by a dataset's id."""


class CachedDataset(Struct):
    """Describes a dataset that is stored here or is being fetched."""

    contents: dict[str, int]
    """Size by SHA-256, its manifest not among them."""
    used_at: float
    complete: bool


class DataCache:
    """Keeps the datasets on this worker's disk.

    It blocks: call it in a thread where it touches many files, one call at a time.
    """

    def __init__(self, folder: Path, limit_bytes: int, lock: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._lock = lock
        self._held: dict[str, CachedDataset] = {}
        self._wanted_by: Counter[str] = Counter()
        """How many datasets have each content."""
        self._sizes: dict[str, int] = {}
        self.held_bytes = 0
        """Of all datasets that are here or on their way; the same content counts once."""
        self._guarded = True
        self._uses: dict[str, frozenset[str]] = {}
        """Datasets by attempt."""
        self._shown_in: dict[str, Path] = {}
        """Folders in which attempts see their data, where these are not their views."""

    @classmethod
    def open(cls, folder: Path, limit_bytes: int | None = None) -> "DataCache":
        """Takes up what an earlier process left; what belongs to no dataset goes."""
        folder = folder.expanduser().absolute()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = _locked(folder / "lock")
            for name in ("datasets", "objects", "parts", "views"):
                (folder / name).mkdir(mode=0o700, exist_ok=True)
            cache = cls(folder, 0, lock)
            cache._load()
            cache.limit_bytes = cache._usual_limit() if limit_bytes is None else limit_bytes
            cache._sweep()
        except OSError as error:
            raise CacheUnusable(
                f"The data cache {folder} cannot be used: {error.strerror or error}."
            ) from error
        return cache

    def close(self) -> None:
        os.close(self._lock)

    def guard(self, guarded: bool) -> None:
        """Tells whether a wall keeps jobs from writing here; what was kept without one is believed after a look only."""
        self._guarded = guarded
        mark = self.folder / "guarded"
        if not guarded:
            mark.unlink(missing_ok=True)
        elif not mark.exists():
            for path in self.folder.glob("objects/*/*"):
                os.utime(path)
            mark.touch()

    # What there is.

    def complete(self) -> list[str]:
        """Returns the ids of those that are here whole, the last used first."""
        whole = [(held.used_at, dataset_id) for dataset_id, held in self._held.items() if held.complete]
        return [dataset_id for _, dataset_id in sorted(whole, reverse=True)[:MAX_HELD]]

    def object_path(self, sha256: str) -> Path:
        return self.folder / "objects" / sha256[:2] / sha256

    def part_path(self, sha256: str) -> Path:
        return self.folder / "parts" / sha256

    def view(self, attempt_id: str, mount: str) -> Path:
        if not MOUNT.fullmatch(mount) or not MOUNT.fullmatch(attempt_id):
            raise CacheUnusable(f"{mount[:100]!r} cannot name a folder.")
        return self.views(attempt_id) / checked_id(mount)

    def views(self, attempt_id: str) -> Path:
        if attempt_id in self._shown_in:
            return self._shown_in[attempt_id]
        return self.folder / "views" / checked_id(attempt_id)

    def show_in(self, attempt_id: str, folder: Path) -> None:
        """Puts the attempt's view into this folder, where what it writes beside the files outlives it."""
        self._shown_in[attempt_id] = folder

    def manifest(self, dataset_id: str) -> tuple[FileEntry, ...] | None:
        """Returns None where it is not here, or is not what it should be."""
        try:
            data = self._manifest_path(dataset_id).read_bytes()
            return read_manifest(data, POLICY) if id_of(data) == dataset_id else None
        except (OSError, FleetError):
            return None

    def _manifest_path(self, dataset_id: str) -> Path:
        return self.folder / "datasets" / f"{dataset_id}.json"

    def _whole_path(self, dataset_id: str) -> Path:
        return self.folder / "datasets" / f"{dataset_id}.whole"

    # Coming.

    def take_manifest(self, dataset_id: str) -> tuple[FileEntry, ...] | None:
        """Returns what has arrived as one; None if it is not. Raises Invalid where it is, and makes no sense."""
        part = self.part_path(dataset_id)
        data = part.read_bytes()
        part.unlink()
        if id_of(data) != dataset_id:
            return None
        files = read_manifest(data, POLICY)
        write_whole(self._manifest_path(dataset_id), data)
        return files

    def begin(self, attempt_id: str, manifests: Manifests, now: float) -> None:
        """Makes room for these datasets and keeps them as long as the attempt uses them. Raises CacheFull."""
        wanted_bytes = sum(_contents(file for files in manifests.values() for file in files).values())
        if wanted_bytes > self.limit_bytes:
            raise CacheTooSmall(self._explain_limit(wanted_bytes))
        self._uses[attempt_id] = frozenset(manifests)
        for dataset_id, files in manifests.items():
            if dataset_id not in self._held:
                self._enter(dataset_id, _contents(files), now)
                # Here already, unless it was let go since it was looked at.
                write_whole(self._manifest_path(dataset_id), canonical(files))
            self._touch(dataset_id, now)
        try:
            self._make_room()
            self._check_disk()
        except CacheFull:
            self.release(attempt_id)
            for dataset_id in manifests:
                if not self._held[dataset_id].complete and not self._in_use(dataset_id):
                    self._evict(dataset_id)
            raise

    def hold(self, attempt_id: str, dataset_ids: Collection[str]) -> None:
        """Keeps datasets that an attempt of an earlier process still uses."""
        self._uses[attempt_id] = frozenset(dataset_ids)

    def is_here(self, sha256: str, size: int) -> bool:
        """Tells whether the file is here and right. It is read again only where somebody may have touched it."""
        path = self.object_path(sha256)
        try:
            facts = path.lstat()
        except FileNotFoundError:
            return False
        if self._guarded and facts.st_size == size and facts.st_mtime_ns == VERIFIED_NS:
            return True
        if sha256_of(path) == (sha256, size):
            _mark_verified(path)
            return True
        log.warning("a file in the data cache was changed or damaged; it is fetched again")
        path.unlink()
        return False

    def keep(self, sha256: str, size: int) -> bool:
        """Makes what has arrived part of the cache if it is what it should be, and removes it if it is not."""
        part, path = self.part_path(sha256), self.object_path(sha256)
        try:
            if sha256_of(part) != (sha256, size):
                part.unlink()
                return False
        except FileNotFoundError:  # a call that nobody waited for any more has kept it
            return self.is_here(sha256, size)
        _mark_verified(part)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        os.replace(part, path)
        return True

    def finish(self, dataset_ids: Iterable[str]) -> None:
        """Marks these datasets as complete. From now on they are believed after a power cut, too."""
        fresh = [dataset_id for dataset_id in dataset_ids if not self._held[dataset_id].complete]
        if fresh:
            _write_out(self.folder)
        for dataset_id in fresh:
            self._whole_path(dataset_id).touch()
            self._held[dataset_id].complete = True

    def lay_out(self, attempt_id: str, mount: str, files: Iterable[FileEntry]) -> Path:
        """Lays out the dataset as a folder of the attempt's own: it may write beside the files, not into them."""
        root = self.view(attempt_id, mount)
        if attempt_id in self._shown_in:
            remove_links(root)
        else:
            remove_tree(root)
        files = list(files)
        try:
            self._lay_links(root, files)
        except OSError:  # an earlier attempt has left something else where a folder or a file belongs
            remove_tree(root)
            self._lay_links(root, files)
        return root

    def _lay_links(self, root: Path, files: Sequence[FileEntry]) -> None:
        made: set[Path] = set()
        for file in files:
            target = root / file.path
            if target.parent not in made:
                target.parent.mkdir(mode=VIEWED, parents=True, exist_ok=True)
                made.add(target.parent)
            target.unlink(missing_ok=True)
            _link(self.object_path(file.sha256), target)

    # Going.

    def release(self, attempt_id: str) -> None:
        """Removes the view of an attempt that is over, and lets its datasets be evicted."""
        self._uses.pop(attempt_id, None)
        shown_in = self._shown_in.pop(attempt_id, None)
        if shown_in:
            remove_links(shown_in)
            return
        with contextlib.suppress(StateDirError):
            remove_tree(self.views(attempt_id))

    def prune_views(self, but: Collection[str]) -> None:
        """Removes, at the start, what attempts left that are over since. Their links would keep let-go files on the disk."""
        for folder in (self.folder / "views").iterdir():
            if folder.name not in but:
                remove_tree(folder)

    def _enter(self, dataset_id: str, contents: dict[str, int], used_at: float) -> None:
        self._held[dataset_id] = CachedDataset(contents, used_at, complete=False)
        for sha256, size in contents.items():
            if sha256 not in self._sizes:
                self._sizes[sha256] = size
                self.held_bytes += size
            self._wanted_by[sha256] += 1

    def _touch(self, dataset_id: str, now: float) -> None:
        self._held[dataset_id].used_at = now
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._manifest_path(dataset_id), (now, now))

    def _in_use(self, dataset_id: str) -> bool:
        return any(dataset_id in used for used in self._uses.values())

    def _make_room(self) -> None:
        for dataset_id in self._by_last_use():
            if self.held_bytes <= self.limit_bytes:
                return
            self._evict(dataset_id)
        if self.held_bytes > self.limit_bytes:
            raise CacheFull(self._explain_limit(self.held_bytes))

    def _explain_limit(self, used_bytes: int) -> str:
        return (
            f"the data in use would have {_gb(used_bytes)}, and this worker's data cache may hold "
            f"{_gb(self.limit_bytes)} (--data-cache-gb)"
        )

    def _check_disk(self) -> None:
        absent = sum(size for sha256, size in self._sizes.items() if not self.object_path(sha256).exists())
        for dataset_id in self._by_last_use():
            if shutil.disk_usage(self.folder).free >= absent + SPARE_BYTES:
                return
            self._evict(dataset_id)
        free = shutil.disk_usage(self.folder).free
        if free < absent + SPARE_BYTES:
            raise CacheFull(
                f"the data needs {_gb(absent)} more on this worker, whose disk has {_gb(free)} free"
            )

    def _by_last_use(self) -> list[str]:
        """Returns those nobody uses, the longest unused first."""
        free = [(dataset.used_at, id) for id, dataset in self._held.items() if not self._in_use(id)]
        return [dataset_id for _, dataset_id in sorted(free)]

    def _evict(self, dataset_id: str) -> None:
        dataset = self._held.pop(dataset_id)
        self._whole_path(dataset_id).unlink(missing_ok=True)
        self._manifest_path(dataset_id).unlink(missing_ok=True)
        for sha256 in dataset.contents:
            self._wanted_by[sha256] -= 1
            if not self._wanted_by[sha256]:
                del self._wanted_by[sha256]
                self.held_bytes -= self._sizes.pop(sha256)
                self.object_path(sha256).unlink(missing_ok=True)
                self.part_path(sha256).unlink(missing_ok=True)
        log.info("the dataset %s was let go to make room", dataset_id[:12])

    # The start.

    def _load(self) -> None:
        for path in sorted((self.folder / "datasets").iterdir()):
            dataset_id = path.stem
            files = self.manifest(dataset_id) if SHA256.fullmatch(dataset_id) else None
            if files is None:
                path.unlink()
            elif path.suffix == ".json":
                self._enter(dataset_id, _contents(files), path.stat().st_mtime)
        believed: set[str] = set()
        for dataset_id, held in self._held.items():
            if self._whole_path(dataset_id).exists():
                believed |= held.contents.keys()
                held.complete = all(self.object_path(sha256).exists() for sha256 in held.contents)
        for sha256 in self._sizes.keys() - believed:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.object_path(sha256))

    def _usual_limit(self) -> int:
        room = shutil.disk_usage(self.folder).free + self.held_bytes
        return min(USUAL_LIMIT_BYTES, int(SHARE_OF_FREE * room))

    def _sweep(self) -> None:
        for path in (*self.folder.glob("objects/*/*"), *self.folder.glob("parts/*")):
            if path.name not in self._wanted_by:
                path.unlink()
        with contextlib.suppress(CacheFull):
            self._make_room()


def _locked(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise CacheInUse(f"Another worker uses the data cache {path.parent}.") from None
    return lock


def _contents(files: Iterable[FileEntry]) -> dict[str, int]:
    return {file.sha256: file.size for file in files}


def _write_out(folder: Path) -> None:
    """Returns when the disk of this folder has all that was written to it.

    Of no other disk: one that hangs, as a network disk may, would keep every job of this worker waiting.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if libc.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)


def _mark_verified(path: Path) -> None:
    path.chmod(READ_ONLY)
    os.utime(path, ns=(VERIFIED_NS, VERIFIED_NS))


def remove_links(folder: Path) -> None:
    """Takes a dataset's files out of a folder, and leaves what others wrote there."""
    if not folder.is_dir() or folder.is_symlink():
        return
    for entry in entries_beneath(folder):
        if entry.is_dir(follow_symlinks=False):
            continue
        if entry.is_symlink() or entry.stat(follow_symlinks=False).st_mtime_ns == VERIFIED_NS:
            os.unlink(entry.path)


def _link(source: Path, target: Path) -> None:
    """Makes a hard link, which looks like the file itself.

    Where the disk knows none, or allows no more of one file, it makes a symbolic link.
    """
    try:
        os.link(source, target)
    except OSError:
        os.symlink(source, target)


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
