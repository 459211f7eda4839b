"""Asks this machine's cloud for a notice, from the start until one comes."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from simpletuner_fleet.agent.interruptions.clouds import CloudWatch, EndSeen, watch_of
from simpletuner_fleet.agent.interruptions.firmware import FIRMWARE, cloud_of
from simpletuner_fleet.agent.interruptions.metadata import METADATA_URL, MetadataService
from simpletuner_fleet.agent.interruptions.remembered import RememberedEnd

log = logging.getLogger(__name__)

UNANSWERED_EVERY_S = 60.0
"""So seldom is a service asked that does not answer, though the firmware says that it is there."""


class NoticeSettings(Struct, frozen=True, kw_only=True):
    watch: str = "auto"
    """`auto`: the cloud whose machine this is by its firmware; `off`: nobody; or a cloud by its name."""
    metadata_url: str = METADATA_URL
    firmware: Path = FIRMWARE


async def watch_for_end(
    settings: NoticeSettings, remembered: RememberedEnd, on_end: Callable[[EndSeen], None]
) -> None:
    """Returns once there is a notice; on a machine of no cloud at once, without asking anybody."""
    cloud = settings.watch if settings.watch not in ("auto", "off") else None
    if settings.watch == "auto":
        cloud = await asyncio.to_thread(cloud_of, settings.firmware)
    if cloud is None:
        return
    watch = watch_of(cloud, MetadataService(settings.metadata_url))
    on_end(await _end_of(watch, cloud, remembered))


async def _end_of(watch: CloudWatch, cloud: str, remembered: RememberedEnd) -> EndSeen:
    said_silent = said_false = False
    while True:
        seen = await watch.look()
        if seen is not None and remembered.believes(cloud):
            return seen
        if seen is not None and not said_false:
            said_false = True
            log.warning("%s says again that this machine ends, which was not so before: not believed", cloud)
        if not watch.answers and not said_silent:
            said_silent = True
            log.info("this is a machine of %s, but its metadata service does not answer: no notices", cloud)
        await asyncio.sleep(watch.every_s if watch.answers else UNANSWERED_EVERY_S)
