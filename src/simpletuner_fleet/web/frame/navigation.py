"""The rail: where one can go from every page, as far as one may."""

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


ADMINISTRATION = N_("Administration")

PLACES = (
    Place("/", N_("Overview"), "layout-dashboard", "jobs.read", key="o"),
    Place("/train", N_("Train"), "play", "queue.submit", key="t"),
    Place("/jobs", N_("Jobs"), "list", "jobs.read", key="j"),
    Place("/configs", N_("Configs"), "file-text", "configs.read", key="c"),
    Place("/fleet", N_("Fleet"), "cpu", "jobs.read", key="f"),
    Place("/notifications", N_("Notifications"), "info", "notifications.own", key="n"),
    Place("/admin/workers", N_("Workers"), "server", "admin.workers", ADMINISTRATION, key="w"),
    Place("/admin/users", N_("Users"), "users", "admin.users", ADMINISTRATION, key="u"),
    Place("/admin/tokens", N_("API tokens"), "key", "admin.tokens", ADMINISTRATION, key="k"),
    Place("/admin/audit", N_("Audit"), "scroll-text", "admin.audit", ADMINISTRATION, key="a"),
    Place("/admin/settings", N_("Settings"), "settings", "admin.limits", ADMINISTRATION, key="s"),
)


class NavigationLink(Struct, frozen=True):
    place: Place
    current: bool


def navigation(principal: Principal, path: str) -> list[NavigationLink]:
    return [
        NavigationLink(place, current=_holds(place.path, path))
        for place in PLACES
        if principal.can(place.permission)
    ]


def _holds(place: str, path: str) -> bool:
    return path == place or (place != "/" and path.startswith(place + "/"))
