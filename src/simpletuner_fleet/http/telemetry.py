"""What Prometheus may count. No label names a job, a worker or a person."""

from collections.abc import Mapping
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from simpletuner_fleet import __version__
from simpletuner_fleet.core.job import JobState
from simpletuner_fleet.core.worker import WorkerStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 120, 600, 3600, 21600, 86400)


class Telemetry:
    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        build = Gauge("simpletuner_build_info", "The version that runs", ["version"], registry=registry)
        build.labels(__version__).set(1)
        self._workers = Gauge("simpletuner_workers", "Workers by status", ["status"], registry=registry)
        self._jobs = Gauge("simpletuner_jobs", "Jobs by state", ["state"], registry=registry)
        self._streams = Gauge("simpletuner_worker_streams", "Open streams of workers", registry=registry)
        self._watchers = Gauge("simpletuner_event_streams", "Open streams of watchers", registry=registry)
        self._commits = Gauge("simpletuner_transactions", "Transactions since the start", registry=registry)
        self._waits = Histogram(
            "simpletuner_dispatch_seconds",
            "From a job's submission to its first offer",
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._requests = Histogram(
            "simpletuner_http_request_seconds",
            "Requests by row of the route table",
            ["method", "route"],
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self._answers = Counter(
            "simpletuner_http_answers", "Answers by status class", ["status"], registry=registry
        )
        # Finding the child of a metric by its labels costs as much as reading a request's head.
        self._timer = cache(self._requests.labels)
        self._counter = cache(lambda hundreds: self._answers.labels(f"{hundreds}xx"))

    def first_offer(self, waited_s: float) -> None:
        self._waits.observe(max(0.0, waited_s))

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._timer(method if route else "", route).observe(seconds)
        self._counter(status // 100).inc()

    def page(
        self,
        *,
        jobs: Mapping[str, int],
        workers: Mapping[str, int],
        streams: int,
        watchers: int,
        commits: int,
    ) -> bytes:
        for state in JobState:
            self._jobs.labels(state).set(jobs.get(state, 0))
        for status in WorkerStatus:
            self._workers.labels(status).set(workers.get(status, 0))
        self._streams.set(streams)
        self._watchers.set(watchers)
        self._commits.set(commits)
        return generate_latest(self._registry)
