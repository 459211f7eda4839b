"""Every page of the console, in the same table as the API: one place says who may see what."""

from simpletuner_fleet.http.routes import Route
from simpletuner_fleet.web import assets, job, jobs, overview, samples, start

ROUTES: tuple[Route, ...] = (
    *assets.ROUTES,
    *start.ROUTES,
    *overview.ROUTES,
    *jobs.ROUTES,
    *job.ROUTES,
    *samples.ROUTES,
)
