"""Caches listings of datasets for the next reader: an id stands for the same files for ever."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from simpletuner_fleet.core.configs.dataset_pictures import DatasetListing

MOST_FILES = 100_000
"""Of all listings that are kept, some 30 MB. A larger one is made anew for each who looks."""


class ListingCache:
    """Caches the listings of datasets by id, the last used last.

    It holds nothing about people: whether somebody may see a dataset is checked elsewhere.
    """

    def __init__(self, most_files: int = MOST_FILES) -> None:
        self._most_files = most_files
        self._listings: OrderedDict[str, DatasetListing] = OrderedDict()
        self._making = asyncio.Lock()
        """One is made at a time: of a large manifest it takes a second of a core, and its 48 MB."""

    async def get(self, dataset_id: str, make: Callable[[], Awaitable[DatasetListing]]) -> DatasetListing:
        known = self._listings.get(dataset_id)
        if known is not None:
            self._listings.move_to_end(dataset_id)
            return known
        async with self._making:
            listing = self._listings.get(dataset_id) or await make()
            self._listings[dataset_id] = listing
        while sum(len(one.files) for one in self._listings.values()) > self._most_files:
            self._listings.popitem(last=False)
        return listing
