"""Takes the metrics that workers send, and shows them as curves."""

from typing import Annotated

from msgspec import Meta, Struct

from simpletuner_fleet.core.bounds import Version
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.training.bands import Bucket
from simpletuner_fleet.core.training.metrics import MAX_STEP
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.workers.uploads import claim_of
from simpletuner_fleet.http.edge.routes import KIB, UPLOAD, Call, Route, rfc3339
from simpletuner_fleet.protocol.metrics import MetricsAnswer, MetricsSent, Number, to_wire
from simpletuner_fleet.storage.metrics import curves, points
from simpletuner_fleet.storage.metrics.curves import SeenCurves
from simpletuner_fleet.storage.metrics.kept_curves import EVERYTHING, StepSpan

MAX_BATCH_BYTES = 4 * KIB * KIB
MOST_POINTS = 5_000


class MetricsQuery(Struct, kw_only=True):
    key: list[str] = []
    """Which curves; may be repeated. All of them unless told."""
    points: Annotated[int, Meta(ge=1, le=MOST_POINTS)] = 500
    """The most points of each curve."""
    attempt: Version | None = None
    """Number of the try; all of them as one curve unless told."""
    from_step: Annotated[int, Meta(ge=0, le=MAX_STEP)] | None = None
    """Only from this step on: fewer steps are put together into one point."""
    to_step: Annotated[int, Meta(ge=0, le=MAX_STEP)] | None = None
    """Only up to this step."""
    after: Annotated[str, Meta(max_length=64)] | None = None
    """The `cursor` of an earlier answer to the same question: only points that changed since are told."""


class CurvePoint(Struct, kw_only=True):
    """Holds one point for several neighbouring steps: `step`, `at` and `last` are the last step's."""

    step: int
    at: str | None
    min: float | None
    """Null where no value was finite."""
    max: float | None
    last: Number


class MetricsView(Struct, kw_only=True):
    keys: list[str]
    """All keys there are."""
    attempt: int | None
    series: dict[str, list[CurvePoint]]
    begins: dict[str, int]
    """How many points of each curve are as they were told before `after`; its series follows upon them."""
    cursor: str
    total: int
    """How many steps have been told of, before they were put together."""


async def send_metrics(call: Call[MetricsSent]) -> MetricsAnswer:
    body = call.body
    claim = claim_of(call, body.epoch)
    stored = await points.store_points(deps_of(call).storage, claim, body.first, body.points)
    return MetricsAnswer(next=stored)


async def send_gpu_metrics(call: Call[MetricsSent]) -> MetricsAnswer:
    body = call.body
    claim = claim_of(call, body.epoch)
    stored = await points.store_gpu_points(deps_of(call).storage, claim, body.first, body.points)
    return MetricsAnswer(next=stored)


async def show_metrics(call: Call[None]) -> MetricsView:
    query = call.query
    span = EVERYTHING
    if query.from_step is not None or query.to_step is not None:
        span = StepSpan(query.from_step or 0, MAX_STEP if query.to_step is None else query.to_step)
    seen = _seen(query.after) if query.after else None
    curve_set = await curves.curves(
        deps_of(call).storage, call.path["id"], query.key, query.points, query.attempt, span, seen
    )
    return MetricsView(
        keys=curve_set.keys,
        attempt=query.attempt,
        series={
            key: [_curve_point(bucket) for bucket in buckets] for key, buckets in curve_set.series.items()
        },
        begins=curve_set.begins,
        cursor=f"{curve_set.seen.reading}.{curve_set.seen.edition}",
        total=curve_set.total,
    )


def _seen(cursor: str) -> SeenCurves:
    reading, _, edition = cursor.partition(".")
    if not (reading.isascii() and reading.isdecimal() and edition.isascii() and edition.isdecimal()):
        raise Invalid("This cursor was not issued by this server.", path="$.after")
    return SeenCurves(int(reading), int(edition))


def _curve_point(bucket: Bucket) -> CurvePoint:
    return CurvePoint(
        step=bucket.step,
        at=rfc3339(bucket.at),
        min=bucket.min,
        max=bucket.max,
        last=to_wire(bucket.last),
    )


ROUTES = [
    Route(
        "POST",
        "/api/workers/job/{id}/metrics",
        send_metrics,
        UPLOAD,
        MetricsSent,
        MetricsAnswer,
        "Points of an attempt, resumable by their count",
        max_body_bytes=MAX_BATCH_BYTES,
        tags=("workers",),
    ),
    Route(
        "POST",
        "/api/workers/job/{id}/gpu-metrics",
        send_gpu_metrics,
        UPLOAD,
        MetricsSent,
        MetricsAnswer,
        "How the GPUs of an attempt are doing, counted apart from its points",
        max_body_bytes=MAX_BATCH_BYTES,
        tags=("workers",),
    ),
    Route(
        "GET",
        "/api/jobs/{id}/metrics",
        show_metrics,
        "jobs.read",
        answer=MetricsView,
        summary="Loss and other curves of a job, with the smallest and largest value of what was put together",
        query=MetricsQuery,
        tags=("jobs",),
    ),
]
