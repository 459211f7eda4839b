"""Keeps a journal of what was revoked: a backup cannot know it, and a restore must not give it back."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.events import EventType

TAKES_AWAY = frozenset(
    {
        EventType.TOKEN_REVOKED,
        EventType.WORKER_TOKEN_ROTATED,
        EventType.WORKER_DELETED,
        EventType.USER_PASSWORD_SET,
        EventType.USER_ROLE_CHANGED,
        EventType.USER_DISABLED,
        EventType.USER_ENABLED,
        EventType.TEAM_MEMBER_SET,
        EventType.TEAM_DELETED,
        EventType.ROLE_SET,
        EventType.ROLE_DELETED,
        EventType.PROVIDER_CHANGED,
        EventType.PROVIDER_DELETED,
    }
)


MOST_LINES = 40_000
UNREADABLE = "unreadable"
"""Stands for a line of a journal that nobody can read: it may have told of anything."""


class Revocation(Struct, frozen=True, omit_defaults=True):
    """Records one revocation, as one line of the journal.

    The first line of a journal names no event: it says from when on the journal is whole. A line is after a
    backup where either the time or the audit log's own number says so: rather something is withdrawn twice
    than given back.
    """

    at: float
    event: str = ""
    id: str = ""
    role: str = ""
    """The role that a user has had since; of a team's member '' where they have left. Of a role: what it holds."""
    member: str = ""
    """The user whose place in the team `id` this is about."""
    seq: int | None = None
    """Of the entry in the audit log; of a first line, of the newest entry then."""

    def is_after(self, backup: "BackupMoment") -> bool:
        """Tells whether it was after the backup, by the time or by the audit log's number.

        A clock may have been set, and a restored audit log counts on from an older number.
        """
        return self.at >= backup.at or (self.seq is not None and self.seq > backup.seq)

    def is_whole_for(self, backup: "BackupMoment") -> bool:
        return self.event == "" and (self.at <= backup.at if self.seq is None else self.seq <= backup.seq)


class BackupMoment(NamedTuple):
    """Tells when a backup was made, by the clock of whoever made it and by its newest audit entry."""

    at: float
    seq: int


class Withdrawn(Struct, frozen=True, kw_only=True):
    """Holds what was revoked since a backup, and must not be valid in a restored database."""

    everything: bool = False
    """Nobody knows what was taken away since: nothing of what would let somebody in is believed."""
    tokens: frozenset[str] = frozenset()
    workers: frozenset[str] = frozenset()
    passwords: frozenset[str] = frozenset()
    disabled: frozenset[str] = frozenset()
    roles: dict[str, str] = {}
    members: dict[str, dict[str, str]] = {}
    """By the id of the team: the role that each user has had in it since, '' where they have left."""
    teams: frozenset[str] = frozenset()
    """Those that are gone."""
    own_roles: dict[str, str] = {}
    """What each role of one's own holds since, as one document; '' where it is gone."""
    providers: dict[str, bool] = {}
    """Those to log in with that were changed since, by id; True where it is gone."""


def noted_in(entry: AuditEntry) -> Revocation:
    """Returns the journal's line for an entry of the audit log, of a kind that revokes something."""
    role, member = "", ""
    if entry.event_type == EventType.USER_ROLE_CHANGED:
        role = str(entry.details.get("now", ""))
    if entry.event_type == EventType.TEAM_MEMBER_SET:
        role, member = str(entry.details.get("role", "")), str(entry.details.get("user", ""))
    if entry.event_type == EventType.ROLE_SET:
        role = msgspec.json.encode(entry.details).decode()
    return Revocation(
        at=entry.at, event=entry.event_type, id=entry.target_id, role=role, member=member, seq=entry.seq
    )


def journal_lines(noted: Iterable[Revocation]) -> bytes:
    # A line that a crash has cut off must not take the next one with it.
    return b"\n" + b"".join(msgspec.json.encode(one) + b"\n" for one in noted)


def read_lines(content: bytes) -> list[Revocation]:
    """Reads the journal; a last line that a crash cut off is left out, since it was never confirmed.

    Any other line that cannot be read is returned as unreadable.
    """
    *lines, last = content.split(b"\n")
    noted = [_read(line) for line in lines if line]
    return [*noted, *(one for one in [_read(last)] if last and one.event != UNREADABLE)]


def _read(line: bytes) -> Revocation:
    try:
        return msgspec.json.decode(line, type=Revocation)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Revocation(at=0.0, event=UNREADABLE)


def joined(noted: Iterable[Revocation], more: Iterable[Revocation]) -> list[Revocation]:
    """Merges two journals, each line once; a very long one loses its oldest part, and records that."""
    lines = list(dict.fromkeys([*noted, *more]))
    if len(lines) <= MOST_LINES:
        return lines
    gone, kept = lines[: -MOST_LINES // 2], lines[-MOST_LINES // 2 :]
    seqs = [one.seq for one in gone if one.seq is not None]
    begin = Revocation(at=max(one.at for one in gone), seq=max(seqs) if seqs else None)
    return [begin, *(one for one in kept if one.event)]


def withdrawn_since(backup: BackupMoment, journal: Iterable[Revocation]) -> Withdrawn:
    """Returns all that was revoked since the backup began; everything, if the journal is no help.

    It is none where it began after the backup, or where a line of it cannot be read.
    """
    noted = list(journal)
    if any(one.event == UNREADABLE for one in noted):
        return Withdrawn(everything=True)
    if not any(one.is_whole_for(backup) for one in noted):
        return Withdrawn(everything=True)
    tokens, workers, passwords, disabled = set[str](), set[str](), set[str](), set[str]()
    roles: dict[str, str] = {}
    later = sorted((one for one in noted if one.is_after(backup)), key=lambda one: (one.seq or 0, one.at))
    for one in later:
        match one.event:
            case EventType.TOKEN_REVOKED:
                tokens.add(one.id)
            case EventType.WORKER_TOKEN_ROTATED | EventType.WORKER_DELETED:
                workers.add(one.id)
            case EventType.USER_PASSWORD_SET:
                passwords.add(one.id)
            case EventType.USER_DISABLED:
                disabled.add(one.id)
            case EventType.USER_ENABLED:
                disabled.discard(one.id)
            case EventType.USER_ROLE_CHANGED:
                roles[one.id] = one.role
    return Withdrawn(
        tokens=frozenset(tokens),
        workers=frozenset(workers),
        passwords=frozenset(passwords),
        disabled=frozenset(disabled),
        roles=roles,
        members=_members_since(later),
        teams=frozenset(one.id for one in later if one.event == EventType.TEAM_DELETED),
        own_roles={
            one.id: one.role for one in later if one.event in (EventType.ROLE_SET, EventType.ROLE_DELETED)
        },
        providers={
            one.id: one.event == EventType.PROVIDER_DELETED
            for one in later
            if one.event in (EventType.PROVIDER_CHANGED, EventType.PROVIDER_DELETED)
        },
    )


def _members_since(later: Iterable[Revocation]) -> dict[str, dict[str, str]]:
    members: dict[str, dict[str, str]] = {}
    for one in later:
        if one.event == EventType.TEAM_MEMBER_SET:
            members.setdefault(one.id, {})[one.member] = one.role
    return members
