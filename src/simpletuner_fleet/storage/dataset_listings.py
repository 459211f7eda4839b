"""Lists what is in a dataset for people: its pictures, and the captions beside them."""

import asyncio
from collections.abc import Sequence

from simpletuner_fleet.core.configs.dataset_pictures import (
    CAPTION_BYTES,
    DatasetListing,
    DatasetPicture,
    caption_text,
    listing_of,
)
from simpletuner_fleet.core.configs.datasets import Dataset
from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.storage.datasets import read_files
from simpletuner_fleet.storage.storage import Storage


async def listing(storage: Storage, dataset: Dataset) -> DatasetListing:
    """Returns what is in a dataset that the caller may see, as was checked before.

    Raises NotFound where its manifest is no longer stored.
    """

    async def make() -> DatasetListing:
        files = await read_files(storage, dataset.id, dataset.manifest_bytes)
        return await asyncio.to_thread(listing_of, files)

    return await storage.listing_cache.get(dataset.id, make)


async def captions_of(blobs: Blobs, pictures: Sequence[DatasetPicture]) -> list[str]:
    """Returns the caption of each picture, or an empty text where there is none."""
    return list(await asyncio.gather(*(_caption(blobs, picture) for picture in pictures)))


async def _caption(blobs: Blobs, picture: DatasetPicture) -> str:
    file = picture.caption
    if file is None or not file.size:
        return ""
    content = await blobs.read_object(file.sha256, 0, min(file.size, CAPTION_BYTES))
    return caption_text(content, file.size)
