"""Puts the datasets of an attempt in place; what is not cached is fetched once, however many attempts wait for it."""

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ParamSpec

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.agent.data.data_cache import DataCache, Manifests
from simpletuner_fleet.agent.data.downloads import (
    PATIENCE_S,
    ContentSource,
    DownloadFailed,
    Downloads,
    DownloadStalled,
)
from simpletuner_fleet.core.configs.datasets import with_places
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.training.checkpoint import SHA256, FileEntry
from simpletuner_fleet.core.worker_errors import CacheUnusable, DataFailed
from simpletuner_fleet.protocol.data import DataHeld, DatasetOrder
from simpletuner_fleet.protocol.messages import JobSubmit

P = ParamSpec("P")
FETCHED_AT_ONCE = 4
TRIES_AT_A_FILE = 3
MAX_MANIFEST_BYTES = 64 * 1024 * 1024


class DataUnreachable(DataFailed):
    """The orchestrator was unreachable for so long that the attempt is given back."""

    code = "data_unreachable"


class FetchProgress(Struct):
    """Counts how many bytes of an attempt's datasets are fetched so far; it can be read during the fetch."""

    done_bytes: int = 0
    total_bytes: int = 0

    def fetched(self, count: int) -> None:
        self.done_bytes += count


class Datasets:
    def __init__(
        self,
        cache: DataCache,
        client: ContentSource,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cache = cache
        self._client = client
        self._patience_s = patience_s
        self._clock = clock
        self._books = asyncio.Lock()
        """Around what the cache keeps books of; the files themselves have a lock each."""
        self._files: dict[str, tuple[asyncio.Lock, int]] = {}

    def held(self) -> DataHeld:
        cache = self._cache
        return DataHeld(
            datasets=cache.complete(), bytes=cache.held_bytes, limit_bytes=max(0, cache.limit_bytes)
        )

    def located(self, offer: JobSubmit) -> JobSubmit:
        """Returns the order with every reference to a dataset replaced by its folder on this machine."""
        if not offer.datasets:
            return offer
        places = {mount: str(self._cache.view(offer.attempt_id, mount)) for mount in offer.datasets}
        return replace(
            offer,
            config=with_places(offer.config, places),
            dataloader=with_places(offer.dataloader, places),
            env=with_places(offer.env, places),
            files=with_places(offer.files, places),
        )

    def folder_of(self, attempt_id: str) -> Path:
        """Returns where the attempt sees its datasets."""
        return self._cache.views(attempt_id)

    async def put_in_place(self, offer: JobSubmit, fetching: FetchProgress) -> None:
        """Raises DataFailed; CacheFull or CacheUnusable where it is this machine that has no place for the data.

        What was fetched stays for the next try, however this one ends.
        """
        orders = offer.datasets or {}
        downloads = Downloads(
            lambda sha256, offset: self._client.fetch_data(offer.job_id, sha256, offset),
            patience_s=self._patience_s,
            on_bytes=fetching.fetched,
        )
        try:
            manifests = {order.id: await self._manifest(order, downloads) for order in orders.values()}
            await self._in_the_books(self._begin, offer.attempt_id, manifests)
            await self._fetch_all(_contents(manifests), downloads, fetching)
            await self._in_the_books(self._lay_out, offer, manifests)
        except Invalid as error:
            raise DataFailed(f"the data: {error.detail}") from error
        except DownloadStalled as error:
            raise DataUnreachable(f"the data could not be fetched: {error}") from error
        except DownloadFailed as error:
            raise DataFailed(f"the data cannot be had: {error}") from error
        except OSError as error:
            # Its own paths may be longer than any system takes; everything else is this machine's trouble.
            kind = DataFailed if error.errno == errno.ENAMETOOLONG else CacheUnusable
            raise kind(f"the data could not be written: {error.strerror or error}") from error

    def show_in(self, attempt_id: str, folder: Path) -> None:
        """Shows the attempt its data there, so that files that a trainer writes beside it stay for the next attempt."""
        self._cache.show_in(attempt_id, folder)

    async def release(self, attempt_id: str) -> None:
        await self._in_the_books(self._cache.release, attempt_id)

    async def take_up(self, offers: list[JobSubmit]) -> None:
        """Learns at the start which attempts run still; of all others nothing is needed any more."""
        for offer in offers:
            self._cache.hold(offer.attempt_id, [order.id for order in (offer.datasets or {}).values()])
        await self._in_the_books(self._cache.prune_views, {offer.attempt_id for offer in offers})

    async def _in_the_books(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Does one piece of work at a time, each to its end: a thread does not stop when nobody waits for it any more."""
        async with self._books:
            doing = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
            try:
                await asyncio.shield(doing)
            except asyncio.CancelledError:
                await asyncio.wait({doing})
                raise

    async def _manifest(self, order: DatasetOrder, downloads: Downloads) -> tuple[FileEntry, ...]:
        if not SHA256.fullmatch(order.id) or not 0 < order.manifest_bytes <= MAX_MANIFEST_BYTES:
            raise DataFailed(f"the data '{order.name or order.id[:64]}' is not known any more")
        async with self._alone_with(order.id):
            known = await asyncio.to_thread(self._cache.manifest, order.id)
            if known is not None:
                return known
            for _ in range(TRIES_AT_A_FILE):
                await downloads.fetch(
                    order.id, order.manifest_bytes, self._cache.part_path(order.id), "its list of files"
                )
                files = await asyncio.to_thread(self._cache.take_manifest, order.id)
                if files is not None:
                    return files
        raise DownloadFailed(f"its list of files arrived damaged {TRIES_AT_A_FILE} times")

    def _begin(self, attempt_id: str, manifests: Manifests) -> None:
        self._cache.begin(attempt_id, manifests, self._clock())

    async def _fetch_all(
        self, contents: dict[str, int], downloads: Downloads, fetching: FetchProgress
    ) -> None:
        absent = await asyncio.to_thread(self._absent, contents)
        fetching.done_bytes, fetching.total_bytes = 0, sum(size for _, size in absent)
        queue = iter(absent)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(FETCHED_AT_ONCE):
                    group.create_task(self._fetch_from(queue, downloads, fetching))
        except ExceptionGroup as troubles:
            raise troubles.exceptions[0] from troubles

    def _absent(self, contents: dict[str, int]) -> list[tuple[str, int]]:
        return [(sha256, size) for sha256, size in contents.items() if not self._cache.is_here(sha256, size)]

    async def _fetch_from(
        self, queue: Iterator[tuple[str, int]], downloads: Downloads, fetching: FetchProgress
    ) -> None:
        for sha256, size in queue:
            async with self._alone_with(sha256):
                if await asyncio.to_thread(self._cache.is_here, sha256, size):
                    fetching.fetched(size)
                    continue
                await self._fetch(sha256, size, downloads, fetching)

    async def _fetch(self, sha256: str, size: int, downloads: Downloads, fetching: FetchProgress) -> None:
        part = self._cache.part_path(sha256)
        fetching.fetched(part.stat().st_size if part.exists() else 0)
        for _ in range(TRIES_AT_A_FILE):
            await downloads.fetch(sha256, size, part, f"the file {sha256[:12]}")
            if await asyncio.to_thread(self._cache.keep, sha256, size):
                return
            fetching.fetched(-size)
        raise DownloadFailed(f"the file {sha256[:12]} arrived damaged {TRIES_AT_A_FILE} times")

    def _lay_out(self, offer: JobSubmit, manifests: Manifests) -> None:
        self._cache.finish(manifests)
        for mount, order in (offer.datasets or {}).items():
            self._cache.lay_out(offer.attempt_id, mount, manifests[order.id])

    @asynccontextmanager
    async def _alone_with(self, sha256: str) -> AsyncIterator[None]:
        """Makes attempts that want the same file wait for each other, so that the second finds it in the cache."""
        lock, users = self._files.get(sha256, (asyncio.Lock(), 0))
        self._files[sha256] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._files[sha256]
            if users == 1:
                del self._files[sha256]
            else:
                self._files[sha256] = (lock, users - 1)


def _contents(manifests: Manifests) -> dict[str, int]:
    return {file.sha256: file.size for files in manifests.values() for file in files}
