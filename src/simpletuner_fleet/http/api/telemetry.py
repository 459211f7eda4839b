"""What Prometheus may count. No label names a job, a worker or a person."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from simpletuner_fleet import __version__
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.workers.worker import WorkerStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 120, 600, 3600, 21600, 86400)


class RequestTimes(Collector):
    """How long requests took and how they were answered, counted in plain lists: a counter with locks and labels
    costs as much as reading a request's head."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], list[int]] = {}
        """Counts by method and route how many fell into each bucket; the last bucket takes what is longer than all."""
        self._seconds: dict[tuple[str, str], float] = {}
        self._answers: dict[int, int] = {}
        """Counts by the hundreds of their status."""

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method if route else "", route)
        counts = self._buckets.get(key)
        if counts is None:
            counts = self._buckets[key] = [0] * (len(REQUEST_BUCKETS) + 1)
            self._seconds[key] = 0.0
        counts[bisect_left(REQUEST_BUCKETS, seconds)] += 1
        self._seconds[key] += seconds
        hundreds = status // 100
        self._answers[hundreds] = self._answers.get(hundreds, 0) + 1

    def collect(self) -> Iterator[HistogramMetricFamily | CounterMetricFamily]:
        times = HistogramMetricFamily(
            "simpletuner_http_request_seconds",
            "Requests by row of the route table",
            labels=["method", "route"],
        )
        bounds = [*(str(float(bound)) for bound in REQUEST_BUCKETS), "+Inf"]
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
        self.requests = RequestTimes()
        registry.register(self.requests)

    def first_offer(self, waited_s: float) -> None:
        self._waits.observe(max(0.0, waited_s))

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
