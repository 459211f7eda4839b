"""Finds the last scalars of TensorBoard's event files from their ends, however much stands before them.

Records name their length in front of them alone, so a place where one begins is looked for by its checksum.
"""

import os
import re
import struct
import time
from pathlib import Path
from typing import BinaryIO

from simpletuner_fleet.agent.metrics.metric_files import opened
from simpletuner_fleet.agent.metrics.tensorboard import (
    EventFolder,
    masked_crc32c,
    read_event,
    records,
)
from simpletuner_fleet.core.training.metrics import Point

BLOCK_BYTES = 256 * 1024
MOST_BLOCKS = 256
"""Of each file: after its last step a trainer may write many pictures."""
_HEADER = struct.Struct("<QI")
_BEGINNING = re.compile(rb"(?s)(?=.{2}\x00{6}.{4}\x09)")
"""Of a record that is short enough to be read: its length, a checksum, and an event, whose time comes first."""


def last_point(folder: Path, since: int, within_s: float) -> Point | None:
    """Returns the furthest point at the end of any file; None where none is found in time. Blocks for the disk."""
    give_up_at = time.monotonic() + within_s
    points = []
    for event_file in EventFolder(folder).look(at_once=True):
        file = opened(event_file.path)
        if file is not None:
            with file:
                points.append(_last_of(file, give_up_at))
    own = [point for point in points if point and point.step >= since]
    return max(own, key=lambda point: point.step, default=None)


def _last_of(file: BinaryIO, give_up_at: float) -> Point | None:
    """Looks at the last block, and further back where no scalars are in there."""
    known_from = block_end = os.fstat(file.fileno()).st_size
    for _ in range(MOST_BLOCKS):
        block_start = max(0, block_end - BLOCK_BYTES)
        begins = _first_record(file, block_start, block_end, give_up_at)
        if begins is not None:
            point = _furthest(file, begins, known_from, give_up_at)
            if point:
                return point
            known_from = begins
        if not block_start or time.monotonic() > give_up_at:
            break
        block_end = block_start
    return None


def _first_record(file: BinaryIO, start: int, end: int, give_up_at: float) -> int | None:
    file.seek(start)
    block = file.read(end - start + _HEADER.size)
    for match in _BEGINNING.finditer(block):
        at = match.start()
        length, checksum = _HEADER.unpack_from(block, at)
        if masked_crc32c(length.to_bytes(8, "little")) == checksum:
            return start + at
        if time.monotonic() > give_up_at:
            break
    return None


def _furthest(file: BinaryIO, start: int, end: int, give_up_at: float) -> Point | None:
    furthest: Point | None = None
    for record in records(file, start):
        point = read_event(record.content) if record.content else None
        if point and (furthest is None or point.step >= furthest.step):
            furthest = point
        if record.end >= end or time.monotonic() > give_up_at:
            break
    return furthest
