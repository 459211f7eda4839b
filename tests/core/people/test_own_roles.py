import pytest

from simpletuner_fleet.core.errors import Conflict, Forbidden, Invalid
from simpletuner_fleet.core.people.accounts import Role
from simpletuner_fleet.core.people.own_roles import (
    OwnRole,
    checked_role,
    only_own_jobs,
    permissions_held,
    refuse_more_than_held,
)
from simpletuner_fleet.core.people.permissions import EVERYTHING, role_permissions
from simpletuner_fleet.core.people.sign_in.providers import RoleRules

APPROVER = OwnRole(name="approver", permissions=("jobs.read", "queue.approve"), all_jobs=True)
OWN = {"approver": APPROVER}


@pytest.mark.parametrize(
    ("holder", "made", "may"),
    [
        (Role.ADMIN, Role.ADMIN, True),
        (Role.ADMIN, Role.VIEWER, True),
        (Role.ADMIN, "approver", True),
        (Role.MEMBER, Role.ADMIN, False),
        (Role.MEMBER, Role.MEMBER, True),
        (Role.MEMBER, Role.VIEWER, True),
        (Role.MEMBER, "approver", False),
        (Role.VIEWER, Role.MEMBER, False),
        ("approver", "approver", True),
        ("approver", Role.VIEWER, False),
    ],
)
def test_nobody_makes_another_what_they_are_not_themselves(holder: str, made: str, may: bool) -> None:
    def give() -> None:
        refuse_more_than_held(
            permissions_held(made, OWN),
            all_jobs=made in OWN and OWN[made].all_jobs,
            held=permissions_held(holder, OWN),
            holder_only_own=only_own_jobs(holder, OWN),
        )

    if may:
        give()
    else:
        with pytest.raises(Forbidden):
            give()


def test_what_is_missing_is_named() -> None:
    def missing(held: tuple[str, ...], role: Role) -> str:
        with pytest.raises(Forbidden) as refused:
            refuse_more_than_held(role_permissions(role), all_jobs=False, held=held, holder_only_own=True)
        return str(refused.value)

    assert EVERYTHING in missing(("admin.users",), Role.ADMIN)
    assert "queue.submit" in missing(("admin.users", *role_permissions(Role.VIEWER)), Role.MEMBER)


def test_everybodys_jobs_are_given_by_nobody_who_steers_their_own_alone() -> None:
    with pytest.raises(Forbidden):
        refuse_more_than_held((), all_jobs=True, held=("queue.approve",), holder_only_own=True)


def test_only_admins_and_roles_that_say_so_steer_everybodys_jobs() -> None:
    plain = {"plain": OwnRole(name="plain", permissions=())}
    assert [role for role in Role if only_own_jobs(role, OWN)] == [Role.MEMBER, Role.VIEWER]
    assert not only_own_jobs("approver", OWN)
    assert only_own_jobs("plain", plain)
    assert only_own_jobs("gone", OWN)


def test_a_role_that_is_gone_holds_nothing() -> None:
    assert permissions_held("approver", {}) == ()


@pytest.mark.parametrize(
    ("role", "refused"),
    [
        (OwnRole(name="admin", permissions=()), Conflict),
        (OwnRole(name="Big", permissions=()), Invalid),
        (OwnRole(name="a/b", permissions=()), Invalid),
        (OwnRole(name="", permissions=()), Invalid),
        (OwnRole(name="a" * 33, permissions=()), Invalid),
        (OwnRole(name="a", permissions=("*",)), Invalid),
        (OwnRole(name="a", permissions=("admin.*",)), Invalid),
        (OwnRole(name="a", permissions=("no.such",)), Invalid),
    ],
)
def test_a_role_has_a_plain_name_and_permissions_of_the_list_alone(
    role: OwnRole, refused: type[Exception]
) -> None:
    with pytest.raises(refused):
        checked_role(role)


def test_permissions_are_kept_once_and_in_the_order_of_the_list() -> None:
    doubled = OwnRole(name="a", permissions=("jobs.read", "queue.read", "jobs.read"))
    assert checked_role(doubled).permissions == ("queue.read", "jobs.read")


def test_groups_at_a_log_in_give_roles_of_ones_own_while_there_are_such_roles() -> None:
    rules = RoleRules(admin=("root",), own={"approver": ("leads",)}, member=("staff",))
    groups = frozenset({"staff", "leads"})
    assert rules.role_for(groups, OWN) == "approver"
    assert rules.role_for(groups | {"root"}, OWN) == Role.ADMIN
    assert rules.role_for(groups, {}) == Role.MEMBER
    assert rules.role_for(frozenset({"leads"}), {}) is None
