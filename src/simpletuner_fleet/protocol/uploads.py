"""Defines how checkpoints and artifacts are transferred, in one copy for both ends.

They are sent by content, in parts, the manifest last.
"""

from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.bounds import FreeText, Moment, Name, Whole
from simpletuner_fleet.core.training.checkpoint import FileEntry as FileEntry
from simpletuner_fleet.core.training.checkpoint import Manifest as Manifest

PART_BYTES = 256 * 1024 * 1024
"""The most that an agent sends in one part. The orchestrator takes a whole file at once, as `curl -T` sends it, too."""
DIRECT_HEADER = "x-storage-direct"
"""Sent by a program that can read a file from where a 307 names, and comes back where it cannot."""
TRIED_LINK_PATH = "/api/workers/job/check/objects/none/link"
TRIED_PART_PATH = "/api/workers/job/check/objects/none"
"""As a real one's, for whoever stands in between and decides by the path."""
TRIED_PART_BYTES = 8 * 1024 * 1024
"""As large as the first parts of a real upload."""
TRIED_PART_SHA256 = "2daeb1f36095b44b318410b3f4e8b5d989dcc7bb023d1426c492dab0a3053e74"
"""Of so many zeros."""


class ObjectAsked(Struct, frozen=True, kw_only=True):
    sha256: Name
    size: Whole


class ObjectMissing(Struct, frozen=True, kw_only=True):
    sha256: str
    offset: int
    """How much of it has arrived: go on from here."""


class ObjectsAsked(Struct, kw_only=True):
    epoch: Whole
    objects: list[ObjectAsked]


class ObjectsAnswer(Struct, kw_only=True, omit_defaults=True):
    missing: list[ObjectMissing]
    direct: bool = False
    """Whether large ones may go straight to the storage, by links that `DirectAsked` asks for."""


class PartAnswer(Struct, kw_only=True):
    next_offset: int
    complete: bool


class DirectPart(Struct, frozen=True, kw_only=True):
    number: Whole
    """The first is 1."""
    sha256: Name
    """Of this part alone: it is signed into the link."""


class DirectAsked(Struct, kw_only=True):
    """Asks to send a file straight to the storage.

    It begins the file, or goes on with it, and asks for the link for one part of it.
    """

    epoch: Whole
    size: Whole
    part_bytes: Whole = 0
    """How large parts should be; counts where the file was not begun before."""
    part: DirectPart | None = None


class DirectAnswer(Struct, kw_only=True):
    complete: bool = False
    """The file is stored: nothing need be sent."""
    part_bytes: int = 0
    have: list[int] = []
    """Which parts have arrived; told where no link was asked for."""
    url: str = ""
    headers: dict[str, str] = {}
    """To be sent along with the part, exactly so."""


class DirectEnd(Struct, kw_only=True):
    """Says that all parts of a file were sent straight to the storage."""

    epoch: Whole
    size: Whole


class StorageLink(Struct, kw_only=True):
    """Holds a link by which a file can be read straight from the storage; '' where it cannot."""

    url: str = ""


class StorageTrial(StorageLink, kw_only=True):
    """Holds the links by which a worker tries whether it can use the storage.

    It reads by `url`, and sends TRIED_PART_BYTES of zeros by `send_url`.
    """

    send_url: str = ""
    """'' where an older orchestrator has only the one to read."""
    headers: dict[str, str] = {}
    """To be sent along, exactly so."""


class ManifestSent(Struct, kw_only=True):
    epoch: Whole
    manifest: Manifest


class ManifestAnswer(Struct, kw_only=True):
    manifest_id: str
    accepted: bool = True
    checkpoints_keep: int | None = None
    """The most checkpoints of each kind that this server keeps of a job; None: an older one does not say."""


class Resume(Struct, frozen=True, kw_only=True):
    """Describes the checkpoint to put in place before the trainer starts: it is what `JobSubmit.resume` holds."""

    manifest_id: str
    step: int
    name: str
    attempt: int
    """Number of the attempt that made it."""
    worker_name: str
    files: tuple[FileEntry, ...]


class Note(Struct, frozen=True, kw_only=True):
    """Carries a remark on an attempt: what a watchdog saw, what was done about it. `id` makes repeats harmless."""

    id: Name
    at: Moment
    kind: Name
    text: FreeText
    data: dict[str, Any] = {}


class NotesSent(Struct, kw_only=True):
    epoch: Whole
    notes: list[Note]


class NotesAnswer(Struct, kw_only=True):
    stored: int
