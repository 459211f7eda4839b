"""One trainer ends and the next waiting job begins: neither the report nor the next start waits for a clock."""

from itertools import pairwise

from tests.e2e.kit import Json, World
from tests.e2e.proxy import Proxy

JOBS = 4
RESEND_S = 30.0
"""So long that an offer which is not taken at once shows."""
SOON_S = 5.0


def start_patient_server(world: World) -> None:
    """Neither a resend nor a heartbeat brings an offer again."""
    world.start_server(
        SIMPLETUNER_OFFER_RESEND=str(RESEND_S),
        SIMPLETUNER_HEARTBEAT_INTERVAL="20",
        SIMPLETUNER_HEARTBEAT_TIMEOUT="80",
    )


def test_the_next_waiting_job_begins_as_soon_as_the_last_one_has_ended(bare_world: World) -> None:
    world = bare_world
    start_patient_server(world)
    world.start_worker("one-at-a-time")
    jobs: list[Json] = []
    for job_id in [world.submit(world.command("/bin/sleep", "0.2")) for _ in range(JOBS)]:
        world.becomes(job_id, "completed", within_s=SOON_S)
        jobs.append(world.attempts(job_id)[0])
    assert all(earlier["ended_at"] <= later["started_at"] for earlier, later in pairwise(jobs))


def test_the_next_job_waits_for_no_answer_to_the_report_of_the_last_one(bare_world: World) -> None:
    world = bare_world
    start_patient_server(world)
    with Proxy(world.port) as proxy:
        world.start_worker("hard-of-reachable", url=proxy.url)
        first_gate, second_gate = world.gate(), world.gate()
        first, second = world.submit(world.ticking(first_gate)), world.submit(world.ticking(second_gate))
        world.runs(first)
        proxy.hold_reply(b'"status":"completed"')
        first_gate.write_text("0")
        assert proxy.held.wait(30)
        world.runs(second, within_s=2 * SOON_S)
        second_gate.write_text("0")
        world.becomes(second, "completed")
        assert world.events(first).count("job.completed") == 1
        assert [len(world.journal.assert_one_at_a_time(job_id)) for job_id in (first, second)] == [1, 1]
