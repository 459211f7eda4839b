"""Counts what Prometheus may read. No label names a job, a worker or a person."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from simpletuner_fleet import __version__
from simpletuner_fleet.core.jobs.failure import ADVICE
from simpletuner_fleet.core.jobs.job import JobState, Outcome
from simpletuner_fleet.core.placement.gpu_states import GpuState
from simpletuner_fleet.core.workers.worker import WorkerStatus
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.queries.figures import MOST_WAITING, FleetFigures, StoredFigures

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 120, 600, 3600, 21600, 86400)
ENDS = frozenset(
    {(str(outcome), "") for outcome in Outcome if outcome is not Outcome.FAILED}
    | {(str(Outcome.FAILED), failure) for failure in ("", *ADVICE)}
)
"""Every pair of outcome and failure that is told. They are there from the start: what grows from nothing to one would
not be seen to have grown."""


class Times(Collector):
    """Counts a histogram in a plain list, for what happens several times in every job's life."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        """The last one takes what is longer than every bound."""
        self._seconds = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._seconds += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        buckets = list(zip(_labels(self._bounds), accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._help, buckets=buckets, sum_value=self._seconds)


def _labels(bounds: Sequence[float]) -> list[str]:
    return [*(str(float(bound)) for bound in bounds), "+Inf"]


class RequestTimes(Collector):
    """Counts how long requests took and how they were answered.

    It counts in plain lists: a counter with locks and labels costs as much as reading a request's head.
    """

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], list[int]] = {}
        """Counts by method and route how many fell into each bucket; the last bucket takes what is longer than all."""
        self._seconds: dict[tuple[str, str], float] = {}
        self._answers: dict[int, int] = defaultdict(int, dict.fromkeys((2, 3, 4, 5), 0))
        """Counts by the hundreds of their status."""

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method if route else "", route)
        if key not in self._buckets:
            self._seconds[key] = 0.0
            self._buckets[key] = [0] * (len(REQUEST_BUCKETS) + 1)
        self._buckets[key][bisect_left(REQUEST_BUCKETS, seconds)] += 1
        self._seconds[key] += seconds
        self._answers[status // 100] += 1

    def collect(self) -> Iterator[HistogramMetricFamily | CounterMetricFamily]:
        times = HistogramMetricFamily(
            "simpletuner_http_request_seconds",
            "Requests by row of the route table",
            labels=["method", "route"],
        )
        bounds = _labels(REQUEST_BUCKETS)
        for key, counts in list(self._buckets.items()):
            times.add_metric(
                list(key), list(zip(bounds, accumulate(counts), strict=True)), self._seconds[key]
            )
        yield times
        answers = CounterMetricFamily(
            "simpletuner_http_answers", "Answers by status class", labels=["status"]
        )
        for hundreds, count in sorted(self._answers.items()):
            answers.add_metric([f"{hundreds}xx"], count)
        yield answers


class AttemptEnds(Collector):
    """Counts attempts by how they ended, and failures by their class; in a plain dict, as `RequestTimes` does."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = dict.fromkeys(ENDS, 0)

    def observe(self, outcome: str, failure: str) -> None:
        """Counts the end of an attempt.

        All classes that are not in the table, from older or newer workers, count as one.
        """
        end = (outcome, failure if outcome == Outcome.FAILED else "")
        if end not in ENDS:
            end = (str(outcome), "unknown")
            self._counts.setdefault(end, 0)
        self._counts[end] += 1

    def collect(self) -> Iterator[CounterMetricFamily]:
        ends = CounterMetricFamily(
            "simpletuner_attempts_ended",
            "Attempts by how they ended, and failures by their class",
            labels=["outcome", "failure"],
        )
        for end, count in list(self._counts.items()):
            ends.add_metric(list(end), count)
        yield ends


class FleetSeen(Struct, frozen=True, kw_only=True):
    """Holds the state of the fleet that a page of metrics shows, at the moment the page is asked for.

    What nobody has counted yet is None, and not on the page.
    """

    jobs: Mapping[str, int] | None
    streams: int
    watchers: int
    leads: bool
    figures: FleetFigures | None
    figures_age_s: float
    stored: StoredFigures | None
    disk: tuple[int, int] | None
    """Free bytes and all there are."""
    direct: bool = False
    """Whether large files go straight to the bucket."""
    direct_bytes: int = 0
    """Stored that way since the start."""


NOTHING_SEEN = FleetSeen(
    jobs={},
    streams=0,
    watchers=0,
    leads=True,
    figures=FleetFigures(workers={}, gpus={}, waiting={}),
    figures_age_s=0.0,
    stored=StoredFigures(jobs_bytes=0, datasets_bytes=0),
    disk=None,
)
"""A fleet without anybody: for whoever wants to know the names."""


class Telemetry:
    """Keeps the metrics of this server, as Prometheus reads them.

    Their names follow Prometheus's conventions: one prefix, base units, `_total` for what only grows.
    """

    def __init__(self) -> None:
        # A second series for each that counts, which nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        build = self._gauge("build_info", "The version that runs", "version")
        build.labels(__version__).set(1)
        self._leads = self._gauge("leader", "1 where this orchestrator leads its fleet, alone or of several")
        self._workers = self._gauge("workers", "Workers by status", "status")
        self._gpus = self._gauge("gpus", "GPUs by model and state: free, busy, away", "model", "state")
        self._jobs = self._gauge("jobs", "Jobs by state", "state")
        self._waiting = self._gauge(
            "queue_jobs",
            f"Queued jobs by the reason they wait, of the first {MOST_WAITING}",
            "reason",
            "class",
        )
        self._oldest = self._gauge(
            "queue_oldest_wait_seconds",
            f"Since when the oldest queued job waits, by reason, of the first {MOST_WAITING}",
            "reason",
            "class",
        )
        self._age = self._gauge("figures_age_seconds", "How old the figures of workers, GPUs and queue are")
        self._stored = self._gauge("stored_bytes", "Stored for jobs and as datasets", "kind")
        self._disk_free = self._gauge("storage_free_bytes", "Free on the disk of the storage folder")
        self._disk_size = self._gauge("storage_size_bytes", "Size of the disk of the storage folder")
        self._direct = self._gauge("storage_direct", "1 where large files go straight to the S3 bucket")
        self._direct_bytes = Counter(
            "simpletuner_storage_direct_bytes",
            "Stored by workers straight in the S3 bucket",
            registry=registry,
        )
        self._direct_bytes_counted = 0
        self._streams = self._gauge("worker_streams", "Open streams of workers")
        self._watchers = self._gauge("event_streams", "Open streams of watchers")
        self._waits = Times(
            "simpletuner_dispatch_seconds", "From a job's submission to its first offer", WAIT_BUCKETS
        )
        self._commits = Times(
            "simpletuner_commit_seconds", "Transactions, with their wait for the disk", REQUEST_BUCKETS
        )
        registry.register(self._waits)
        registry.register(self._commits)
        self.ends = AttemptEnds()
        registry.register(self.ends)
        self.requests = RequestTimes()
        registry.register(self.requests)

    def _gauge(self, name: str, help: str, *labels: str) -> Gauge:
        return Gauge(f"simpletuner_{name}", help, labels, registry=self._registry)

    def watch(self, fleet: Fleet) -> None:
        fleet.on_first_offer = self.first_offer
        fleet.on_commit = self._commits.observe
        fleet.on_attempt_end = self.ends.observe

    def first_offer(self, waited_s: float) -> None:
        self._waits.observe(max(0.0, waited_s))

    def page(self, seen: FleetSeen) -> bytes:
        if seen.jobs is not None:
            for state in JobState:
                self._jobs.labels(state).set(seen.jobs.get(state, 0))
        self._leads.set(seen.leads)
        self._streams.set(seen.streams)
        self._watchers.set(seen.watchers)
        self._age.set(seen.figures_age_s)
        if seen.figures is not None:
            self._tell_figures(seen.figures)
        if seen.stored is not None:
            self._stored.labels("jobs").set(seen.stored.jobs_bytes)
            self._stored.labels("datasets").set(seen.stored.datasets_bytes)
        self._direct.set(seen.direct)
        self._direct_bytes.inc(max(0, seen.direct_bytes - self._direct_bytes_counted))
        self._direct_bytes_counted = seen.direct_bytes
        if seen.disk:
            self._disk_free.set(seen.disk[0])
            self._disk_size.set(seen.disk[1])
        return generate_latest(self._registry)

    def _tell_figures(self, figures: FleetFigures) -> None:
        """Sets the figures. The labels are made anew, so that what is gone is not reported any more."""
        for gauge in (self._gpus, self._waiting, self._oldest):
            gauge.clear()
        for status in WorkerStatus:
            self._workers.labels(status).set(figures.workers.get(status, 0))
        for model in {model for model, _ in figures.gpus}:
            for state in GpuState:
                self._gpus.labels(model, state).set(figures.gpus.get((model, state), 0))
        for reason, wait in figures.waiting.items():
            self._waiting.labels(reason, wait.kind).set(wait.jobs)
            self._oldest.labels(reason, wait.kind).set(wait.oldest_s)
