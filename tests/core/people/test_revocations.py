"""What was taken away since a backup, as a journal tells it."""

from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.people.revocations import (
    Revocation,
    Withdrawn,
    revocation_of,
    stamped,
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
    assert withdrawn_since(30.0, noted) == Withdrawn(
        tokens=frozenset({"t_at_the_moment"}),
        workers=frozenset({"w_1", "w_2"}),
        passwords=frozenset({"u_1"}),
        roles={"u_2": "viewer"},
    )


def test_a_clock_that_is_set_forwards_or_back_hides_nothing_from_a_restore() -> None:
    rotated = taken(40.0, EventType.WORKER_TOKEN_ROTATED, "w_1")
    assert [one.at for one in stamped([rotated], 3_640.0)] == [3_640.0]
    assert stamped([rotated], 10.0) == [rotated]


def test_who_was_let_in_again_is_not_kept_out() -> None:
    noted = [BEGUN, taken(50.0, EventType.USER_ENABLED, "u_1"), taken(40.0, EventType.USER_DISABLED, "u_1")]
    assert withdrawn_since(30.0, noted).disabled == frozenset()


def test_a_journal_that_began_after_the_backup_or_is_missing_tells_too_little() -> None:
    assert withdrawn_since(5.0, [BEGUN]).everything
    assert withdrawn_since(30.0, []).everything
    assert not withdrawn_since(10.0, [BEGUN]).everything


def test_an_event_that_takes_nothing_away_is_no_revocation() -> None:
    for kind, expected in ((EventType.USER_LOGIN, None), (EventType.TOKEN_REVOKED, 7.0)):
        event = Event(type=kind, actor=ORCHESTRATOR, target_type="x", target_id="x_1")
        noted = revocation_of(event, 7.0)
        assert (noted.at if noted else None) == expected
