"""Plans uploads that go straight to the bucket: which files, in what parts, under which key, kept how long."""

import re

from msgspec import Struct

from simpletuner_fleet.core.errors import DirectUnavailable, Invalid
from simpletuner_fleet.core.jobs.job import Job

MIB = 1024 * 1024
LEAST_BYTES = 8 * MIB
"""A smaller file takes longer to ask for than to send."""
MOST_BYTES = 5 * 1024 * MIB
"""The most that S3 copies in one call, and so the most of which it computes a SHA-256 itself."""
LEAST_PART_BYTES, MOST_PART_BYTES = 5 * MIB, 32 * MIB
"""S3 takes no smaller ones, but for the last; of a larger one much is lost with a line that breaks."""
STAGED = "direct"
KEY = re.compile(rf"{STAGED}/([^/]+)/(\d+)/([0-9a-f]{{64}})-(\d+)-(\d+)(\.checked)?", re.ASCII)


class Staging(Struct, frozen=True, kw_only=True):
    """Describes one file of one attempt on its way to the bucket.

    Its key says all of it, so that whoever leads next finds it in the bucket.
    """

    job_id: str
    epoch: int
    sha256: str
    size: int
    part_bytes: int

    @property
    def key(self) -> str:
        return f"{STAGED}/{self.job_id}/{self.epoch}/{self.sha256}-{self.size}-{self.part_bytes}"

    @property
    def part_count(self) -> int:
        return -(-self.size // self.part_bytes)

    def part_size(self, number: int) -> int:
        """Returns the size of a part, or raises Invalid for one that the file does not have."""
        if not 1 <= number <= self.part_count:
            raise Invalid(f"The file has parts 1 to {self.part_count}.", path="$.part.number")
        return min(self.part_bytes, self.size - (number - 1) * self.part_bytes)


def staging_of(key: str) -> Staging | None:
    """Returns what a key says; None for one that is not ours."""
    match = KEY.fullmatch(key)
    if match is None:
        return None
    return Staging(
        job_id=match[1],
        epoch=int(match[2]),
        sha256=match[3],
        size=int(match[4]),
        part_bytes=max(1, int(match[5])),
    )


def check_size(size: int) -> None:
    if not LEAST_BYTES <= size <= MOST_BYTES:
        raise DirectUnavailable(
            f"Files of {LEAST_BYTES} to {MOST_BYTES} bytes can go straight to the storage; this one has {size}."
        )


def part_bytes_for(asked: int) -> int:
    return min(MOST_PART_BYTES, max(LEAST_PART_BYTES, asked))


def is_abandoned(staging: Staging, job: Job | None, *, stored: bool, before: float) -> bool:
    """Tells whether nobody will continue it: the job is gone or long over, has a newer attempt, or has the file."""
    if job is None or stored or job.epoch != staging.epoch:
        return True
    return job.terminal and (job.finished_at or 0.0) < before
