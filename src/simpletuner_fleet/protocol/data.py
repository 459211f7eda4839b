"""Defines how datasets are transferred, in one copy for both ends.

Files are sent by content in parts, and the manifest is one of them.
"""

from msgspec import Struct

from simpletuner_fleet.core.bounds import Name, Whole
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.protocol.uploads import ObjectAsked


class DatasetOrder(Struct, frozen=True, kw_only=True):
    """Names a dataset that an attempt needs in place before its trainer starts."""

    id: str
    """SHA-256 of its manifest."""
    bytes: int
    manifest_bytes: int
    name: str = ""


class DataHeld(Struct, frozen=True, kw_only=True):
    """Lists the datasets that a worker has in its cache.

    It is sent when the worker registers, and when the cache changes.
    """

    datasets: list[Name]
    """Ids, the last used first."""
    bytes: Whole = 0
    limit_bytes: Whole = 0


class DataObjectsAsked(Struct, kw_only=True):
    objects: list[ObjectAsked]


class DatasetSent(Struct, kw_only=True):
    id: Name
    """sha256:… of the manifest, which was uploaded as one of the files."""
    name: Name
    team: Name | None = None
    visibility: Visibility | None = None
