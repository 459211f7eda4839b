"""Reserves free space on a disk: uploads stop first, logs later, and the database last of all."""

from enum import StrEnum

from msgspec import Struct

from simpletuner_fleet.core.errors import StorageLow

MIB, GIB = 2**20, 2**30


class Use(StrEnum):
    UPLOADS = "uploads"
    """Checkpoints, results and datasets: they wait on their own disks."""
    LOGS = "logs"
    """And numbers: workers keep them until there is room again."""


class Marks(Struct, frozen=True, kw_only=True):
    """Sets how many bytes of a disk must be free for each use to continue.

    What is below the lowest mark is the database's.
    """

    uploads: int
    logs: int

    def of(self, use: Use) -> int:
        return self.uploads if use is Use.UPLOADS else self.logs


def marks_for(total_bytes: int, least_free_bytes: int | None = None) -> Marks:
    """Returns a twentieth of the disk, 10 GiB at most, as the mark for uploads, and a fifth of that for logs.

    `least_free_bytes` replaces the mark for uploads.
    """
    uploads = min(total_bytes // 20, 10 * GIB) if least_free_bytes is None else least_free_bytes
    return Marks(uploads=uploads, logs=uploads // 5)


def check_room(use: Use, free_bytes: int, more_bytes: int, marks: Marks) -> None:
    """Raises StorageLow where so much more would take what is kept free."""
    if free_bytes - more_bytes < marks.of(use):
        raise StorageLow(
            f"The server's disk has {free_bytes // MIB} MiB left, and {marks.of(use) // MIB} MiB must "
            f"stay free: {use} are paused.",
            free_bytes=free_bytes,
            kept_free_bytes=marks.of(use),
        )
