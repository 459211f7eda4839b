"""Lists the permissions, what each role may do, and whose jobs somebody may control."""

from collections.abc import Collection

from simpletuner_fleet.core.people.accounts import Role

LEAST_ROLE = {
    "admin.workers": Role.ADMIN,
    "admin.audit": Role.ADMIN,
    "admin.tokens": Role.ADMIN,
    "admin.users": Role.ADMIN,
    "admin.scim": Role.ADMIN,  # a provider's own token: it says who comes in, and by which groups
    "admin.limits": Role.ADMIN,
    "admin.notifications": Role.ADMIN,
    "admin.machines": Role.ADMIN,
    "admin.teams": Role.ADMIN,
    "admin.see_all": Role.ADMIN,  # what is private to others, or another team's
    "queue.submit": Role.MEMBER,
    "queue.submit.local": Role.ADMIN,  # such a job is arbitrary code on the orchestrator's own machine
    "queue.submit.command": Role.MEMBER,  # such a job is whatever code its owner writes
    "queue.read": Role.VIEWER,
    "queue.cancel": Role.MEMBER,
    "queue.priority": Role.ADMIN,
    "queue.approve": Role.ADMIN,
    "jobs.read": Role.VIEWER,
    "jobs.cancel": Role.MEMBER,
    "jobs.retry": Role.MEMBER,
    "jobs.edit": Role.MEMBER,
    "configs.read": Role.VIEWER,
    "configs.write": Role.MEMBER,
    "secrets.read": Role.MEMBER,
    "secrets.write": Role.ADMIN,
    "data.read": Role.VIEWER,
    "machines.read": Role.VIEWER,
    "data.write": Role.MEMBER,
    "notifications.own": Role.VIEWER,
}
"""Every permission, and the first of viewer, member and admin who holds it."""
PERMISSIONS = tuple(LEAST_ROLE)
EVERYTHING = "*"


def role_permissions(role: Role) -> tuple[str, ...]:
    """Returns what the role may do. An admin may do everything, also what later versions add."""
    match role:
        case Role.ADMIN:
            return (EVERYTHING,)
        case Role.MEMBER:
            return (*_first_held_by(Role.VIEWER), *_first_held_by(Role.MEMBER))
        case Role.VIEWER:
            return _first_held_by(Role.VIEWER)


def _first_held_by(role: Role) -> tuple[str, ...]:
    return tuple(permission for permission, least in LEAST_ROLE.items() if least is role)


def is_permission(name: str) -> bool:
    return name in LEAST_ROLE or name == EVERYTHING


def allows(held: str, requested: str) -> bool:
    """Tells whether it is held: exactly, by `*`, or by a whole leading part.

    `admin.*` holds `admin.workers`, not `admin` nor `administrator.x`.
    """
    if held in (requested, EVERYTHING):
        return True
    return held.endswith(".*") and len(held) > 2 and requested.startswith(held[:-1])


def allowed(held: Collection[str], requested: str) -> bool:
    if requested in held or EVERYTHING in held:  # nearly every call, and without a walk
        return True
    return any(allows(permission, requested) for permission in held)


def held_within(held: Collection[str], bounds: Collection[str]) -> tuple[str, ...]:
    """Returns the held permissions that lie within these bounds; a wide one is narrowed to the part that does."""
    if EVERYTHING in bounds:
        return tuple(held)
    return tuple(one for one in PERMISSIONS if allowed(held, one) and allowed(bounds, one))


def may_steer_job(*, only_own: bool, callers: Collection[str], owner: str, leads_its_team: bool) -> bool:
    """Tells whether a caller with these ids, who may control jobs at all, may control one of this owner."""
    return not only_own or owner in callers or leads_its_team
