"""Looks up owners in the store: their names, and what they may do."""

from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.people import ownership
from simpletuner_fleet.core.people.accounts import User
from simpletuner_fleet.core.people.approvals import Voter
from simpletuner_fleet.core.people.own_roles import (
    ROLE_PREFIX,
    OwnRole,
    OwnRoles,
    only_own_jobs,
    permissions_held,
)
from simpletuner_fleet.core.people.ownership import Writer
from simpletuner_fleet.core.people.permissions import allowed, held_within
from simpletuner_fleet.core.people.teams import LEAD_PERMISSIONS
from simpletuner_fleet.core.people.visibility import may_see
from simpletuner_fleet.engine.memory.organisation import NOBODY_ORGANISED, Organisation
from simpletuner_fleet.engine.memory.setting_documents import document
from simpletuner_fleet.ports import ApiToken, View

USER, TOKEN, LOCAL = "u_", "t_", "local"
"""`local`: whoever works on the server's own machine, where that is trusted; they may do everything."""


def refuse_others(view: View, writer: Writer, owner: str, what: str) -> None:
    """Raises NotYours unless the thing is the writer's, or the writer has rights over everybody's."""
    ownership.refuse_others(writer, owner, name_of(view, owner), what)


def name_of(view: View, id_: str) -> str:
    """Returns the name of a user or a token; whoever is gone is named by their id."""
    known = view.user(id_) if id_.startswith(USER) else view.api_token(id_) if id_.startswith(TOKEN) else None
    return known.name if known else id_


def holds_now(view: View, id_: str, permission: str) -> bool:
    """Tells whether the user or the token has this permission now; whoever is gone or disabled has none."""
    if id_.startswith(USER):
        user = view.user(id_)
        return (
            user is not None
            and user.disabled_at is None
            and allowed(permissions_held(user.role, _own_role(view, user.role)), permission)
        )
    token = view.api_token(id_)
    return (
        token is not None and token.revoked_at is None and allowed(within_its_owner(view, token), permission)
    )


def _own_role(view: View, name: str) -> OwnRoles:
    """Returns the role; one that cannot be read holds nothing, like one that is gone."""
    role = document(view, ROLE_PREFIX + name, OwnRole, [])
    return {name: role} if role else {}


def voter_now(view: View, organisation: Organisation, id_: str, job: Job) -> Voter | None:
    """Returns the user or token as a voter on the job; None where they may not log in, or not see it."""
    if id_ == LOCAL:
        return Voter(ids=frozenset({id_}), name=id_, above=True)
    token = None if id_.startswith(USER) else view.api_token(id_)
    if token is not None and token.revoked_at is not None:
        return None
    whose = token.owner if token else id_
    user = view.user(whose) if whose else None
    if (user is None and (token is None or whose)) or (user is not None and user.disabled_at is not None):
        return None
    ids = frozenset(one for one in (id_, whose) if one)
    if not may_see(
        organisation.visibility_scope(ids, above=holds_now(view, id_, "admin.see_all")), job.belongs
    ):
        return None
    return Voter(
        ids=ids,
        name=name_of(view, id_),
        leads_its_team=bool(job.team) and job.team in organisation.led_by(ids),
        above=holds_now(view, id_, "queue.approve")
        and (user is None or not only_own_jobs(user.role, organisation.own_roles)),
    )


def permissions_of(user: User, organisation: Organisation) -> tuple[str, ...]:
    """Returns what the user's role allows, and what leading a team allows where they lead one."""
    more = LEAD_PERMISSIONS if organisation.leads_any(user.id) else ()
    return (*permissions_held(user.role, organisation.own_roles), *more)


def within_its_owner(
    view: View, token: ApiToken, organisation: Organisation = NOBODY_ORGANISED
) -> tuple[str, ...]:
    """Returns what the token holds: never more than the user it acts for, and nothing if they may not log in."""
    if not token.owner:
        return token.permissions
    owner = view.user(token.owner)
    if owner is None or owner.disabled_at is not None:
        return ()
    return held_within(token.permissions, permissions_of(owner, organisation))
