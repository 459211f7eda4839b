"""Lists every page of the console in the same table as the API: one place says who may see what."""

from simpletuner_fleet.http.edge.routes import Route
from simpletuner_fleet.web.frame import assets
from simpletuner_fleet.web.frame.page import noting_newest_event
from simpletuner_fleet.web.guide import pages as guide
from simpletuner_fleet.web.pages import (
    audit,
    compare,
    configs,
    create_worker,
    job,
    jobs,
    overview,
    samples,
    settings,
    start,
    train,
    worker,
    workers,
)
from simpletuner_fleet.web.pages.data import datasets, pictures
from simpletuner_fleet.web.pages.machines import machines, pools
from simpletuner_fleet.web.pages.notices import notifications
from simpletuner_fleet.web.pages.people import approvals, quotas, sign_in, teams, tokens, usage, users

PAGES: tuple[Route, ...] = (
    *start.ROUTES,
    *overview.ROUTES,
    *jobs.ROUTES,
    *job.ROUTES,
    *compare.ROUTES,
    *samples.ROUTES,
    *train.ROUTES,
    *configs.ROUTES,
    *datasets.ROUTES,
    *pictures.ROUTES,
    *workers.ROUTES,
    *create_worker.ROUTES,
    *worker.ROUTES,
    *machines.ROUTES,
    *pools.ROUTES,
    *users.ROUTES,
    *sign_in.ROUTES,
    *teams.ROUTES,
    *quotas.ROUTES,
    *usage.ROUTES,
    *approvals.ROUTES,
    *tokens.ROUTES,
    *audit.ROUTES,
    *settings.ROUTES,
    *guide.ROUTES,
    *notifications.ROUTES,
)
ROUTES: tuple[Route, ...] = (*assets.ROUTES, *map(noting_newest_event, PAGES))
