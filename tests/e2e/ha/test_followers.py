"""A follower serves everything, by passing it on: whoever calls need not know who leads."""

import httpx2

from tests.e2e.ha.several import Several
from tests.e2e.processes import wait_until


def test_a_job_is_submitted_run_and_watched_through_a_follower_alone(several: Several) -> None:
    leader, follower = several.pair()
    world = several.world
    worker = world.start_worker("through-the-follower", url=follower.url)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    events = []
    with world.client.stream(
        "GET",
        f"{follower.url}/api/events",
        headers={"authorization": f"Bearer {world.admin_token}", "accept": "text/event-stream"},
    ) as stream:
        assert stream.status_code == 200
        gate.write_text("0")
        for line in stream.iter_lines():
            events.append(line)
            if job_id in line and "completed" in line:
                break
    world.becomes(job_id, "completed")
    worker.becomes("idle")
    assert any(line.startswith("data:") for line in events)
    log = follower.call("GET", f"/api/jobs/{job_id}/logs")
    assert log.is_success
    assert leader.role == "leader"
    assert follower.role == "follower"


def test_the_callers_own_address_and_not_the_followers_is_what_the_leader_knows(several: Several) -> None:
    several.world.settings["SIMPLETUNER_TRUSTED_PROXIES"] = "127.0.0.1"
    several.pair()
    world = several.world
    world._good(
        world.call("POST", "/api/admin/workers", {"name": "far"}, **{"x-forwarded-for": "203.0.113.9"})
    )
    entries = world.get("/api/audit?event_type=worker.created")["entries"]
    assert [entry["ip"] for entry in entries] == ["203.0.113.9"]


def test_nobody_but_an_orchestrator_of_the_fleet_says_for_whom_it_passes_something_on(
    several: Several,
) -> None:
    leader, follower = several.pair()
    forged = {"x-fleet-passed-on": f"1 203.0.113.9 tls {'0' * 64}"}
    answer = leader.call("POST", "/api/admin/workers", {"name": "near"}, forged)
    assert answer.is_success
    entries = several.world.get("/api/audit?event_type=worker.created")["entries"]
    assert [entry["ip"] for entry in entries] == ["127.0.0.1"]
    refused = follower.call("GET", "/api/jobs", more=forged)
    assert (refused.status_code, refused.json()["code"]) == (503, "not_leader")
    assert refused.headers["retry-after"] == "1"


def test_large_bodies_pass_both_ways_and_a_refusal_passes_before_the_body_is_read(several: Several) -> None:
    _, follower = several.pair()
    world = several.world
    text = "x" * 400_000
    config = {"trainer": "command", "settings": {"command": ["true"]}, "files": {"large.txt": text}}
    world.put("/api/configs/large", config)
    assert world.get("/api/configs/large")["files"]["large.txt"] == text
    unknown = httpx2.post(f"{follower.url}/api/queue/submit", content=b"x" * 5_000_000, trust_env=False)
    assert unknown.status_code in (401, 413)
    page = world.client.get(f"{follower.url}/login", headers={"accept": "text/html"})
    assert (page.status_code, "text/html" in page.headers["content-type"]) == (200, True)


def test_an_orderly_stop_hands_over_at_once_and_no_job_is_disturbed_by_restarts_one_by_one(
    several: Several,
) -> None:
    leader, follower = several.pair()
    world = several.world
    world.start_worker("steady", url=several.both_urls())
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    for stopping, staying in ((leader, follower), (follower, leader)):
        stopping.stop()
        staying.becomes("leader", within_s=10)
        world.url = staying.url
        stopping.start()
        stopping.becomes("follower")
        world.goes_on(job_id)
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    assert (job["attempt"], job["losses"]) == (1, 0)
    assert [run.pid for run in world.journal.assert_one_at_a_time(job_id)] == [trainer]
    wait_until(lambda: leader.role == "leader", "the first one leads again")
