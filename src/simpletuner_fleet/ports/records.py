"""Defines rows that have no rules of their own, and the filters to query them."""

from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.people.scim.resources import ScimKind
from simpletuner_fleet.core.people.visibility import Belonging, Visibility, VisibilityScope

TOKEN_USE_NOTED_EVERY_S = 3_600.0


class ApiToken(Struct, frozen=True, kw_only=True):
    """Authenticates a person or a program. An empty permission set allows nothing."""

    id: str
    name: str
    token_hash: str
    permissions: tuple[str, ...]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None
    """To the hour: a request need not be a write."""
    owner: str = ""
    """The user that it acts for; empty where a token without one has made it."""

    def wants_noting(self, now: float) -> bool:
        return self.last_used_at is None or now >= self.last_used_at + TOKEN_USE_NOTED_EVERY_S


class ConfigVersion(Struct, frozen=True, kw_only=True):
    name: str
    version: int
    bundle: bytes
    created_at: float
    created_by: str
    owner: str = ""
    """The same for all versions of a name: who saved the first, and may save others."""
    team: str = ""
    visibility: Visibility = Visibility.EVERYBODY
    """Team and visibility are the same for all versions, too."""

    @property
    def belongs(self) -> Belonging:
        return Belonging(self.owner, self.team, self.visibility)


class IdempotentAnswer(Struct, frozen=True, kw_only=True):
    key: str
    owner: str
    request_hash: str
    job_id: str
    at: float


class JobFilter(Struct, frozen=True, kw_only=True):
    states: tuple[str, ...] = ()
    owner: str | None = None
    worker_id: str | None = None
    config_name: str | None = None
    trainer: str | None = None
    dataset: str | None = None
    """It names the dataset of this id."""
    labels: tuple[tuple[str, str], ...] = ()
    """Each is asked for by the job, key and pattern as they were submitted."""
    tags: tuple[str, ...] = ()
    """It has all of them."""
    reason: str | None = None
    """Why it ended: its own reason, or the class of the failure of its newest try."""
    waiting_groups: tuple[str, ...] | None = None
    """It waits in one of these; see `WaitingGroup`."""
    created_since: float | None = None
    created_until: float | None = None
    finished_since: float | None = None
    finished_until: float | None = None
    results: tuple[str, ...] = ()
    hold: str | None = None
    not_retried: bool = False
    """No other job tries it again."""
    text: str | None = None
    """Part of its name, its config's name or its id; the case of plain letters does not matter."""
    team: str | None = None
    seen_by: VisibilityScope | None = None
    """Only what they may see; None: everything."""
    ids: tuple[str, ...] | None = None
    """It is one of these, some hundred at most."""

    @property
    def narrows(self) -> bool:
        """Tells whether it leaves anything out but by state."""
        return self != JobFilter(states=self.states)


class SavedView(Struct, frozen=True, kw_only=True):
    """Names a list of jobs that somebody saved; the query is that of the page's address."""

    owner: str
    name: str
    query: str
    created_at: float


class WaitingGroup(Struct, frozen=True, kw_only=True):
    """Counts jobs that all wait for the same reason: of one class, held alike, refused by the same workers."""

    key: str
    jobs: int
    first: str
    """The id of one of them."""
    oldest_at: float


class AuditFilter(Struct, frozen=True, kw_only=True):
    event_type: str | None = None
    event_types: frozenset[str] = frozenset()
    """Any of these; empty for all."""
    actor_id: str | None = None
    target_type: str | None = None
    target_id: str | None = None
    since: float | None = None
    until: float | None = None

    def fits(self, entry: AuditEntry) -> bool:
        """Returns whether an entry fits. One of which the hash alone is left fits nothing."""
        return (
            bool(entry.event_type)
            and (self.event_type is None or entry.event_type == self.event_type)
            and (not self.event_types or entry.event_type in self.event_types)
            and (self.actor_id is None or entry.actor_id == self.actor_id)
            and (self.target_type is None or entry.target_type == self.target_type)
            and (self.target_id is None or entry.target_id == self.target_id)
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
        )


class JobNote(Struct, frozen=True, kw_only=True):
    """Records a remark on an attempt, as its worker made it."""

    id: str
    job_id: str
    attempt_number: int
    at: float
    kind: str
    text: str
    data: dict[str, Any] = {}


class Ending(Struct, frozen=True, order=True):
    """Records when a job ended; jobs that ended at one moment are ordered by their id."""

    at: float
    job_id: str


class SetAsideRow(Struct, frozen=True, kw_only=True):
    """Names a row that could not be read because of a damaged disk, an edit by hand, or a newer program."""

    table: str
    id: str
    why: str


class ScimEntry(Struct, frozen=True, kw_only=True):
    """Holds a user or a group as a provider describes it by SCIM."""

    kind: ScimKind
    id: str
    name: str
    """No two of a kind have the same, whatever its case."""
    external_id: str = ""
    document: str
