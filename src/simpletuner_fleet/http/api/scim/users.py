"""Serves SCIM users."""

from typing import Any

from simpletuner_fleet.core.people.scim.filters import OF_USERS
from simpletuner_fleet.core.people.scim.resources import ScimKind, ScimUser, shown_user
from simpletuner_fleet.http.api.scim.answers import USERS
from simpletuner_fleet.http.api.scim.resources import ScimRoutes, Summaries
from simpletuner_fleet.orchestrator.scim import users
from simpletuner_fleet.orchestrator.scim.entries import group_in
from simpletuner_fleet.orchestrator.sign_in.ways import SignIn
from simpletuner_fleet.ports import View


def _shown(view: View, user: ScimUser, unwanted: frozenset[str], meta: dict[str, Any]) -> dict[str, Any]:
    ids = view.scim_groups_of(user.id) if "groups" not in unwanted else []
    entries = (view.scim_entry(ScimKind.GROUP, one) for one in ids)
    return shown_user(user, [group_in(entry) for entry in entries if entry], meta)


ROUTES = ScimRoutes(
    kind=ScimKind.USER,
    at=USERS,
    filters=OF_USERS,
    identity_source=SignIn.scim_identity_source,
    shown=_shown,
    create=users.create,
    replaced=users.replaced,
    patched=users.patched,
    deleted=users.deleted,
).routes(
    Summaries(
        all="SCIM: users",
        new="SCIM: a new user",
        one="SCIM: one user",
        whole="SCIM: a user, whole",
        changes="SCIM: changes of a user",
        goes="SCIM: a user leaves",
    )
)
