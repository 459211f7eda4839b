"""What is answered about what jobs bring forth.

Drawn by `./dev client` from the server's route table. Do not edit: change the routes and draw again.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from simpletuner_fleet.client.table.job_answers import JobView


class CurvePoint(Struct, frozen=True, kw_only=True):
    """Holds one point for several neighbouring steps: `step`, `at` and `last` are the last step's."""

    step: int
    at: str | None
    min: float | None
    """Null where no value was finite."""
    max: float | None
    last: float | str


class MetricsView(Struct, frozen=True, kw_only=True):
    keys: list[str]
    """All keys there are."""
    attempt: int | None
    series: dict[str, list[CurvePoint]]
    begins: dict[str, int]
    """How many points of each curve are as they were told before `after`; its series follows upon them."""
    cursor: str
    total: int
    """How many steps have been told of, before they were put together."""


class RunValue(Struct, frozen=True, kw_only=True):
    job_id: str
    value: Any | UnsetType = UNSET
    """Left out where this run's config does not have the field."""


class DifferenceView(Struct, frozen=True, kw_only=True):
    path: str
    runs: list[RunValue]


class ComparisonView(Struct, frozen=True, kw_only=True):
    jobs: list[JobView]
    differences: list[DifferenceView]
    """The fields of their configs that are not the same in all of them."""
    left_out: int = 0
    """How many more fields differ: only the first are listed."""
    left_out_at_least: bool = False
    """Whether there are even more than `left_out` says: nobody counts them all."""


class FileEntry(Struct, frozen=True, kw_only=True):
    path: str
    """Relative, separated by '/'."""
    size: int
    sha256: str


class ManifestView(Struct, frozen=True, kw_only=True):
    """Describes a checkpoint or an artifact, whose files are stored whole."""

    id: str
    kind: str
    name: str
    step: int | None
    attempt: int
    worker_name: str
    created_at: str | None
    total_bytes: int
    files: list[FileEntry]
    pinned_by: str = ""
    """The id of who keeps it from being deleted by age or number; empty: nobody."""


class ManifestsView(Struct, frozen=True, kw_only=True):
    manifests: list[ManifestView]
