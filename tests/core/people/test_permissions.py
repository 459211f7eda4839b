"""Permissions: what exists, what each role may do, and who may do what to whom."""

import pytest

from simpletuner_fleet.core.people.accounts import Role
from simpletuner_fleet.core.people.permissions import (
    EVERYTHING,
    PERMISSIONS,
    allowed,
    allows,
    is_permission,
    may_steer_job,
    role_permissions,
)


@pytest.mark.parametrize(
    ("held", "asked", "expected"),
    [
        ("admin.workers", "admin.workers", True),
        ("*", "admin.workers", True),
        ("admin.*", "admin.workers", True),
        ("admin.*", "admin.workers.delete", True),
        ("admin.*", "admin", False),
        ("admin.*", "administrator.workers", False),
        ("admin", "admin.workers", False),
        ("admin.w*", "admin.workers", False),
        (".*", "admin.workers", False),
        ("", "admin.workers", False),
        ("**", "admin.workers", False),
        ("*.workers", "admin.workers", False),
        ("ADMIN.WORKERS", "admin.workers", False),
        (" admin.workers", "admin.workers", False),
        ("admin.workers.*", "admin.workers", False),
    ],
)
def test_a_permission_allows_itself_and_what_a_whole_star_covers(
    held: str, asked: str, expected: bool
) -> None:
    assert allows(held, asked) is expected


def test_a_set_allows_what_one_of_it_allows() -> None:
    assert not allowed((), "jobs.read")
    assert allowed(("queue.read", "jobs.*"), "jobs.cancel")
    assert not allowed(("queue.read", "jobs.*"), "queue.cancel")
    assert allowed((EVERYTHING,), "what.later.versions.add")


def test_a_viewer_sees_but_no_secrets_and_changes_nothing() -> None:
    seen = {"queue.read", "jobs.read", "configs.read", "data.read", "machines.read", "notifications.own"}
    assert set(role_permissions(Role.VIEWER)) == seen


def test_a_member_works_with_jobs_configs_and_data_and_never_on_the_servers_own_machine() -> None:
    more = set(role_permissions(Role.MEMBER)) - set(role_permissions(Role.VIEWER))
    assert more == {
        *("queue.submit", "queue.submit.command", "queue.cancel", "jobs.cancel", "jobs.retry"),
        *("jobs.edit", "configs.write", "data.write", "secrets.read"),
    }


def test_each_role_holds_what_the_one_below_it_holds() -> None:
    viewer, member, admin = (role_permissions(role) for role in (Role.VIEWER, Role.MEMBER, Role.ADMIN))
    assert set(viewer) < set(member) < set(PERMISSIONS)
    assert all(allowed(admin, permission) for permission in PERMISSIONS)
    assert not any(permission.startswith("admin.") for permission in member)


@pytest.mark.parametrize(
    ("name", "exists"),
    [("jobs.read", True), (EVERYTHING, True), ("jobs.*", False), ("jobs", False), ("", False)],
)
def test_only_whole_permissions_can_be_given_to_a_token(name: str, exists: bool) -> None:
    assert is_permission(name) is exists


def test_who_steers_their_own_jobs_alone_steers_no_others_unless_they_lead_the_team() -> None:
    assert may_steer_job(only_own=True, callers=("t_1", "u_1"), owner="u_1", leads_its_team=False)
    assert not may_steer_job(only_own=True, callers=("u_1",), owner="u_2", leads_its_team=False)
    assert may_steer_job(only_own=True, callers=("u_1",), owner="u_2", leads_its_team=True)
    assert may_steer_job(only_own=False, callers=("u_1",), owner="u_2", leads_its_team=False)
