"""Serves SCIM groups."""

from typing import Any

from simpletuner_fleet.core.people.scim.filters import OF_GROUPS
from simpletuner_fleet.core.people.scim.resources import ScimGroup, ScimKind, shown_group
from simpletuner_fleet.http.api.scim.answers import GROUPS
from simpletuner_fleet.http.api.scim.resources import ScimRoutes, Summaries
from simpletuner_fleet.orchestrator.scim import groups
from simpletuner_fleet.orchestrator.sign_in.ways import SignIn
from simpletuner_fleet.ports import View


def _shown(view: View, group: ScimGroup, unwanted: frozenset[str], meta: dict[str, Any]) -> dict[str, Any]:
    """Returns the group. Members are looked up only where they are shown: a group may have many."""
    ids = view.scim_members(group.id) if "members" not in unwanted else []
    return shown_group(group, [(one, _name_of(view, one)) for one in ids], meta)


def _name_of(view: View, user_id: str) -> str:
    entry = view.scim_entry(ScimKind.USER, user_id)
    return entry.name if entry else user_id


ROUTES = ScimRoutes(
    kind=ScimKind.GROUP,
    at=GROUPS,
    filters=OF_GROUPS,
    identity_source=SignIn.scim_groups_identity_source,
    shown=_shown,
    create=groups.create,
    replaced=groups.replaced,
    patched=groups.patched,
    deleted=groups.deleted,
).routes(
    Summaries(
        all="SCIM: groups",
        new="SCIM: a new group",
        one="SCIM: one group",
        whole="SCIM: a group, whole",
        changes="SCIM: changes of a group",
        goes="SCIM: a group goes",
    )
)
