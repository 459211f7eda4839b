"""What Prometheus reads, as its own parser reads it."""

from prometheus_client.parser import text_string_to_metric_families

from simpletuner_fleet.core.jobs.job import Outcome
from simpletuner_fleet.http.api.telemetry import NOTHING_SEEN, Telemetry


def samples(telemetry: Telemetry) -> dict[str, float]:
    page = telemetry.page(NOTHING_SEEN).decode()
    return {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_requests_are_counted_by_route_bucket_and_status() -> None:
    telemetry = Telemetry()
    for status, seconds in ((200, 0.001), (200, 0.0011), (404, 99.0)):
        telemetry.requests.observe("GET", "/api/jobs/{id}", status, seconds)
    telemetry.requests.observe("BREW", "", 404, 0.1)
    page = samples(telemetry)
    name = "simpletuner_http_request_seconds"
    assert page[f"{name}_bucket['/api/jobs/{{id}}', '0.001', 'GET']"] == 1
    assert page[f"{name}_bucket['/api/jobs/{{id}}', '0.0025', 'GET']"] == 2
    assert page[f"{name}_bucket['+Inf', '/api/jobs/{{id}}', 'GET']"] == 3
    assert page[f"{name}_count['/api/jobs/{{id}}', 'GET']"] == 3
    assert page[f"{name}_sum['/api/jobs/{{id}}', 'GET']"] == 0.001 + 0.0011 + 99.0
    assert page[f"{name}_count['', '']"] == 1, "a path that is not ours, whatever its method, is one row"
    assert page["simpletuner_http_answers_total['2xx']"] == 2
    assert page["simpletuner_http_answers_total['4xx']"] == 2


def test_attempts_are_counted_by_how_they_ended_and_all_unknown_failures_as_one() -> None:
    telemetry = Telemetry()
    name = "simpletuner_attempts_ended_total"
    assert samples(telemetry)[f"{name}['', 'completed']"] == 0, "what begins at nothing is seen to grow"
    for outcome, failure in (
        *((Outcome.COMPLETED, ""), ("completed", "cuda"), (Outcome.FAILED, "cuda")),
        *((Outcome.FAILED, "of the next release"), ("failed", "of an older one"), ("", "")),
    ):
        telemetry.ends.observe(outcome, failure)
    page = samples(telemetry)
    assert page[f"{name}['', 'completed']"] == 2
    assert page[f"{name}['cuda', 'failed']"] == 1
    assert page[f"{name}['failed', 'unknown']"] == 2
    assert page[f"{name}['', 'unknown']"] == 1
    assert sum(value for key, value in page.items() if key.startswith(name)) == 6


def test_times_fall_into_the_first_bucket_that_holds_them() -> None:
    telemetry = Telemetry()
    for seconds in (0.0, 0.001, 0.0011, 86_400.0, 1e9):
        telemetry.first_offer(seconds)
    page = samples(telemetry)
    name = "simpletuner_dispatch_seconds"
    buckets = [page[f"{name}_bucket['{bound}']"] for bound in ("0.001", "0.005", "86400.0", "+Inf")]
    assert buckets == [2, 3, 4, 5]
    assert page[f"{name}_count[]"] == 5
    assert page[f"{name}_sum[]"] == 0.001 + 0.0011 + 86_400.0 + 1e9
    assert page["simpletuner_commit_seconds_count[]"] == 0
