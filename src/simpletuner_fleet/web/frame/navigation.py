"""Builds the sidebar: the pages that the user may open from every page."""

from msgspec import Struct

from simpletuner_fleet.http.access.auth import Principal
from simpletuner_fleet.languages import N_


class Place(Struct, frozen=True):
    path: str
    title: str
    icon: str
    permission: str
    group: str = ""
    key: str = ""
    """With `g` before it, the keyboard's way here."""
    needs_teams: bool = False
    """Of use to people only where there are teams."""


ADMINISTRATION = N_("Administration")

PLACES = (
    Place("/", N_("Overview"), "layout-dashboard", "jobs.read", key="o"),
    Place("/train", N_("Train"), "play", "queue.submit", key="t"),
    Place("/jobs", N_("Jobs"), "list", "jobs.read", key="j"),
    Place("/configs", N_("Configs"), "file-text", "configs.read", key="c"),
    Place("/datasets", N_("Datasets"), "database", "data.read", key="d"),
    Place("/fleet", N_("Fleet"), "cpu", "jobs.read", key="f"),
    Place("/notifications", N_("Notifications"), "info", "notifications.own", key="n"),
    Place("/admin/workers", N_("Workers"), "server", "admin.workers", ADMINISTRATION, key="w"),
    Place("/machines", N_("Machines"), "hard-drive", "admin.machines", ADMINISTRATION, key="m"),
    Place("/admin/users", N_("Users"), "users", "admin.users", ADMINISTRATION, key="u"),
    Place("/teams", N_("Teams"), "users", "jobs.read", ADMINISTRATION, needs_teams=True),
    Place("/approvals", N_("Approvals"), "check", "jobs.read", ADMINISTRATION, needs_teams=True),
    Place("/quotas", N_("Quotas"), "activity", "jobs.read", ADMINISTRATION, needs_teams=True),
    Place("/usage", N_("Usage"), "chart-line", "jobs.read", ADMINISTRATION, needs_teams=True),
    Place("/admin/tokens", N_("API tokens"), "key", "admin.tokens", ADMINISTRATION, key="k"),
    Place("/admin/audit", N_("Audit"), "scroll-text", "admin.audit", ADMINISTRATION, key="a"),
    Place("/admin/settings", N_("Settings"), "settings", "admin.limits", ADMINISTRATION, key="s"),
)


class NavigationLink(Struct, frozen=True):
    place: Place
    current: bool


def navigation(principal: Principal, path: str, *, in_teams: bool = False) -> list[NavigationLink]:
    """Returns the links. `in_teams`: the principal is in a team; who administers teams needs the links before that."""
    organises = in_teams or principal.can("admin.teams")
    return [
        NavigationLink(place, current=_holds(place.path, path))
        for place in PLACES
        if principal.can(place.permission) and (organises or not place.needs_teams)
    ]


def _holds(place: str, path: str) -> bool:
    return path == place or (place != "/" and path.startswith(place + "/"))
