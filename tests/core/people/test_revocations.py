"""What was taken away since a backup, as a journal tells it."""

import msgspec

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.people.own_roles import OwnRole
from simpletuner_fleet.core.people.revocations import (
    BackupMoment,
    Revocation,
    Withdrawn,
    noted_in,
    withdrawn_since,
)

BEGUN = Revocation(at=10.0)


def taken(at: float, kind: EventType, about: str, role: str = "") -> Revocation:
    return Revocation(at=at, event=kind, id=about, role=role)


def test_only_what_came_after_the_backup_counts() -> None:
    noted = [
        BEGUN,
        taken(20.0, EventType.TOKEN_REVOKED, "t_before"),
        taken(30.0, EventType.TOKEN_REVOKED, "t_at_the_moment"),
        taken(40.0, EventType.WORKER_TOKEN_ROTATED, "w_1"),
        taken(41.0, EventType.WORKER_DELETED, "w_2"),
        taken(42.0, EventType.USER_PASSWORD_SET, "u_1"),
        taken(44.0, EventType.USER_ROLE_CHANGED, "u_2", "viewer"),
    ]
    assert withdrawn_since(BackupMoment(30.0, 300), noted) == Withdrawn(
        tokens=frozenset({"t_at_the_moment"}),
        workers=frozenset({"w_1", "w_2"}),
        passwords=frozenset({"u_1"}),
        roles={"u_2": "viewer"},
    )


def test_who_left_a_team_or_has_another_role_in_it_stays_so() -> None:
    def member(at: float, user: str, role: str) -> Revocation:
        return Revocation(at=at, event=EventType.TEAM_MEMBER_SET, id="tm_1", role=role, member=user)

    noted = [
        BEGUN,
        member(20.0, "u_before", ""),
        member(40.0, "u_left", ""),
        member(41.0, "u_lowered", "viewer"),
        member(42.0, "u_back", ""),
        member(43.0, "u_back", "member"),
        taken(44.0, EventType.TEAM_DELETED, "tm_2"),
    ]
    withdrawn = withdrawn_since(BackupMoment(30.0, 300), noted)
    assert withdrawn.members == {"tm_1": {"u_left": "", "u_lowered": "viewer", "u_back": "member"}}
    assert withdrawn.teams == {"tm_2"}


def test_a_role_of_ones_own_holds_after_a_restore_what_it_held_before() -> None:
    details = {"name": "approver", "permissions": ["jobs.read"], "all_jobs": False}
    entry = AuditEntry(400, 40.0, EventType.ROLE_SET, "t", "t", "", "role", "approver", details)
    noted = [BEGUN, taken(41.0, EventType.ROLE_DELETED, "gone"), noted_in(entry)]
    withdrawn = withdrawn_since(BackupMoment(30.0, 300), noted)
    document = withdrawn.own_roles.pop("approver")
    assert msgspec.json.decode(document, type=OwnRole) == OwnRole(name="approver", permissions=("jobs.read",))
    assert withdrawn.own_roles == {"gone": ""}


def test_a_provider_that_was_changed_or_deleted_since_is_not_believed_as_it_was() -> None:
    noted = [
        BEGUN,
        taken(20.0, EventType.PROVIDER_DELETED, "earlier"),
        taken(40.0, EventType.PROVIDER_CHANGED, "corp"),
        taken(41.0, EventType.PROVIDER_CHANGED, "gone"),
        taken(42.0, EventType.PROVIDER_DELETED, "gone"),
    ]
    assert withdrawn_since(BackupMoment(30.0, 300), noted).providers == {"corp": False, "gone": True}


def test_a_line_about_a_team_names_its_member() -> None:
    details = {"name": "vision", "user": "u_1", "was": "lead"}
    entry = AuditEntry(9, 7.0, EventType.TEAM_MEMBER_SET, "t", "t", "", "team", "tm_1", details)
    assert noted_in(entry) == Revocation(
        at=7.0, event=EventType.TEAM_MEMBER_SET, id="tm_1", role="", member="u_1", seq=9
    )


def test_who_was_let_in_again_is_not_kept_out() -> None:
    noted = [BEGUN, taken(50.0, EventType.USER_ENABLED, "u_1"), taken(40.0, EventType.USER_DISABLED, "u_1")]
    assert withdrawn_since(BackupMoment(30.0, 300), noted).disabled == frozenset()


def test_a_journal_that_began_after_the_backup_or_is_missing_tells_too_little() -> None:
    assert withdrawn_since(BackupMoment(5.0, 50), [BEGUN]).everything
    assert withdrawn_since(BackupMoment(30.0, 300), []).everything
    assert not withdrawn_since(BackupMoment(10.0, 100), [BEGUN]).everything


def test_a_clock_that_was_set_back_or_forth_hides_nothing_that_was_taken_away() -> None:
    """The backup was made by a clock that was an hour ahead, or behind; the audit log counts by itself."""
    noted = [
        Revocation(at=10.0, seq=1),
        Revocation(at=20.0, event=EventType.TOKEN_REVOKED, id="t_before", seq=7),
        Revocation(at=30.0, event=EventType.TOKEN_REVOKED, id="t_since", seq=8),
    ]
    for wrong_by in (3600.0, -3600.0):
        withdrawn = withdrawn_since(BackupMoment(25.0 + wrong_by, 7), noted)
        assert not withdrawn.everything
        assert withdrawn.tokens - {"t_before"} == {"t_since"}, (
            "what the backup knows as revoked may be told twice"
        )


def test_an_older_backup_of_a_history_that_a_restore_has_cut_off_gives_nothing_back() -> None:
    """After a restore the audit log counts on from an older number, so numbers alone would call this one too early."""
    noted = [
        Revocation(at=10.0, seq=1),
        Revocation(at=100.0, event=EventType.TOKEN_REVOKED, id="t_1", seq=260),
    ]
    assert withdrawn_since(BackupMoment(50.0, 290), noted).tokens == {"t_1"}


def test_a_line_says_what_the_entry_of_the_audit_log_says() -> None:
    entry = AuditEntry(9, 7.0, EventType.USER_ROLE_CHANGED, "t", "t", "", "user", "u_1", {"now": "viewer"})
    assert noted_in(entry) == Revocation(
        at=7.0, event=EventType.USER_ROLE_CHANGED, id="u_1", role="viewer", seq=9
    )
