"""Every page of the console, once: where it is, whom it is for, and what to look at there."""

from msgspec import Struct

from simpletuner_fleet.http.edge.routes import Route
from simpletuner_fleet.web import routes
from tests.http.data_kit import dataset_id
from tests.web.browser import Role
from tests.web.fleet import DATASET, FleetState

NO_PAGES = (
    "/assets/",
    "/favicon.ico",
    "/login/with/",
    "/login/back/",
    "/jobs/{id}/pictures/",
    "/datasets/{id}/pictures/",
    "/configs/{name}/export",
)
"""Rows of the console's table that answer with no page."""


class PageRow(Struct, frozen=True):
    path: str
    """As the route table writes it."""
    role: Role = "admin"
    jobs: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """What `{id}` or `{name}` stands for, by turns: the jobs or workers of the fleet's state, or plain names."""

    @property
    def variants(self) -> int:
        """How many different things there are to look at."""
        return max(1, len(self.jobs) + len(self.workers) + len(self.names))

    def url(self, state: FleetState, turn: int = 0) -> str:
        chosen = [
            *(state.jobs[name] for name in self.jobs),
            *(state.workers[name] for name in self.workers),
            *self.names,
        ]
        if not chosen:
            return self.path
        head, _, rest = self.path.partition("{")
        return head + chosen[turn % len(chosen)] + rest.partition("}")[2]


JOBS = ("running", "failed", "waits-labels", "resumed", "hostile")
JOB_TABS = ("logs", "metrics", "checkpoints", "config", "events")
WORKERS = ("atlas-1", "gone", "atlas-3", "desk-bruno", "hostile")

PAGES = (
    PageRow("/"),
    PageRow("/", role="member"),
    PageRow("/train"),
    PageRow("/jobs"),
    PageRow("/jobs/{id}", jobs=JOBS),
    *(PageRow(f"/jobs/{{id}}/{tab}", jobs=("running", "hostile")) for tab in JOB_TABS),
    PageRow("/compare"),
    PageRow("/configs"),
    PageRow("/configs/{name}", names=("sdxl-cats",)),
    PageRow("/datasets"),
    PageRow("/datasets/upload"),
    PageRow("/datasets/{id}", names=(dataset_id(DATASET),)),
    PageRow("/fleet"),
    PageRow("/admin/workers"),
    PageRow("/admin/workers/create"),
    PageRow("/admin/workers/{id}", workers=WORKERS),
    PageRow("/machines"),
    PageRow("/machines/{id}", names=("m_page",)),
    PageRow("/machines/pools"),
    PageRow("/machines/pools/{name}", names=("cloud",)),
    PageRow("/admin/users"),
    PageRow("/admin/users/roles"),
    PageRow("/admin/users/sign-in"),
    PageRow("/teams"),
    PageRow("/quotas"),
    PageRow("/usage"),
    PageRow("/approvals"),
    PageRow("/admin/tokens"),
    PageRow("/admin/audit"),
    PageRow("/admin/settings"),
    PageRow("/notifications"),
    PageRow("/me"),
    PageRow("/help"),
    PageRow("/guide", role="nobody"),
    PageRow("/guide/{page}", role="nobody", names=("first-hour", "settings", "troubleshooting")),
    PageRow("/start", role="nobody"),
    PageRow("/approve", role="nobody"),
    PageRow("/login", role="nobody"),
    PageRow("/login/terminal"),
)


def page_paths() -> set[str]:
    """Of the routes that answer with a page."""
    return {row.path for row in routes.ROUTES if _answers_with_a_page(row)}


def _answers_with_a_page(row: Route) -> bool:
    return row.method == "GET" and not row.path.startswith(NO_PAGES)
