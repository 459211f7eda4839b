"""Defines where metrics are stored: packed records outside the database, one blob for each key of an attempt.

`step` holds a record for every point and is written last: its length says how many points there are. What a crash left
half-written in the others is sent again and is there twice; reading takes each step once, and its last record wins.

The worker's own points of the attempt's GPUs are stored apart and counted by themselves: they are not steps, use none
of the trainer's keys, and are read by their time.
"""

import struct
import sys
from array import array
from collections.abc import AsyncIterator

from simpletuner_fleet.core.training.bands import Samples
from simpletuner_fleet.ports import Blobs

RECORD = struct.Struct("<Qdd")
"""Step, seconds since 1970, value."""
INDEX = "step"
READ_BYTES = 65_536 * RECORD.size


def metrics_folder(attempt_id: str) -> str:
    return f"metrics/{attempt_id}"


def gpu_folder(attempt_id: str) -> str:
    return f"metrics/{attempt_id}.gpus"


def columns(records: bytes) -> Samples:
    """Unpacks records into columns without making an object of each: there may be millions."""
    steps, numbers = array("Q"), array("d")
    steps.frombytes(records)
    numbers.frombytes(records)
    if sys.byteorder == "big":
        steps.byteswap()
        numbers.byteswap()
    return Samples(steps[::3], numbers[1::3], numbers[2::3])


def whole_records(chunk: bytes) -> bytes:
    return chunk[: len(chunk) - len(chunk) % RECORD.size]


async def chunks(blobs: Blobs, key: str) -> AsyncIterator[bytes]:
    start = 0
    while chunk := whole_records(await blobs.read(key, start, READ_BYTES)):
        yield chunk
        start += len(chunk)
