"""Where the numbers of trainings lie: packed records outside the database, one blob for each key of an attempt.

`step` holds a record for every point and is written last: its length says how many points there are. What a crash left
half-written in the others is sent again and stands there twice; reading takes each step once, the last of its kind.

The worker's own points of the attempt's GPUs lie apart, counted by themselves: they are no steps, take no trainer's key, and
are read by their time.
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
    """Reads records without making an object of each: there may be millions."""
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
