"""Defines custom roles beside admin, member and viewer: a name, and the permissions that it holds.

It holds rules only.
"""

import re
from collections.abc import Collection, Mapping

from msgspec import Struct

from simpletuner_fleet.core.errors import Conflict, Forbidden, Invalid
from simpletuner_fleet.core.people.accounts import Role
from simpletuner_fleet.core.people.permissions import LEAST_ROLE, PERMISSIONS, allowed, role_permissions

ROLE_PREFIX = "role:"
"""Begins the name of the setting that holds a role."""
MAX_ROLES = 100
NAME = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)
OTHERS_JOBS = "everybody's jobs"


class OwnRole(Struct, frozen=True, kw_only=True):
    name: str
    permissions: tuple[str, ...]
    """Names of the list alone: a role that holds everything is admin."""
    all_jobs: bool = False
    """Cancels, retries and approves everybody's jobs as far as the permissions go, not their own alone."""


OwnRoles = Mapping[str, OwnRole]


def checked_role(role: OwnRole) -> OwnRole:
    if not NAME.fullmatch(role.name):
        raise Invalid(
            "A role's name begins with a small letter and has up to 32 small letters, digits and '-'.",
            path="$.name",
        )
    if role.name in tuple(Role):
        raise Conflict(f"The role '{role.name}' is always there and stays as it is.")
    unknown = next((one for one in role.permissions if one not in LEAST_ROLE), None)
    if unknown is not None:
        raise Invalid(f"There is no permission '{unknown[:100]}'.", path="$.permissions")
    held = frozenset(role.permissions)
    return OwnRole(
        name=role.name,
        permissions=tuple(one for one in PERMISSIONS if one in held),
        all_jobs=role.all_jobs,
    )


def permissions_held(role: str, own: OwnRoles) -> tuple[str, ...]:
    """Returns what somebody with this role may do; a role that is gone holds nothing."""
    if role in tuple(Role):
        return role_permissions(Role(role))
    known = own.get(role)
    return known.permissions if known else ()


def only_own_jobs(role: str, own: OwnRoles) -> bool:
    """Tells whether the role cancels, retries and approves its own jobs alone."""
    known = own.get(role)
    return role != Role.ADMIN and not (known is not None and known.all_jobs)


def holds_no_more(role: str, other: str, own: OwnRoles, own_before: OwnRoles | None = None) -> bool:
    """Tells whether whoever has the role may do nothing that the other role did not allow.

    `own_before` are the roles that the other one is looked up in, where they have changed since.
    """
    before = own if own_before is None else own_before
    held = permissions_held(other, before)
    within = all(allowed(held, one) for one in permissions_held(role, own))
    return within and (only_own_jobs(role, own) or not only_own_jobs(other, before))


def refuse_unknown(role: str, own: OwnRoles) -> None:
    if role not in (*Role, *own):
        raise Invalid(
            f"There is no role '{role[:100]}'.",
            path="$.role",
            next_step="See them with 'simpletuner roles list'.",
        )


def refuse_more_than_held(
    permissions: Collection[str], *, all_jobs: bool, held: Collection[str], holder_only_own: bool
) -> None:
    """Raises Forbidden: nobody makes a role, or makes somebody, that may do what they may not do themselves."""
    missing = next((one for one in permissions if not allowed(held, one)), None)
    if missing is not None:
        raise Forbidden(missing)
    if all_jobs and holder_only_own:
        raise Forbidden(OTHERS_JOBS)
