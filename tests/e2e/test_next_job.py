"""One trainer ends and the next waiting job begins: neither the report nor the next start waits for a clock."""

from itertools import pairwise

from tests.e2e.kit import Json, World

JOBS = 4
RESEND_S = 30.0
"""So long that an offer which is not taken at once shows."""
SOON_S = 5.0


def test_the_next_waiting_job_begins_as_soon_as_the_last_one_has_ended(bare_world: World) -> None:
    world = bare_world
    world.start_server(
        SIMPLETUNER_OFFER_RESEND=str(RESEND_S),
        SIMPLETUNER_HEARTBEAT_INTERVAL="20",
        SIMPLETUNER_HEARTBEAT_TIMEOUT="80",
    )
    world.start_worker("one-at-a-time")
    jobs: list[Json] = []
    for job_id in [world.submit(world.command("/bin/sleep", "0.2")) for _ in range(JOBS)]:
        world.becomes(job_id, "completed", within_s=SOON_S)
        jobs.append(world.attempts(job_id)[0])
    assert all(earlier["ended_at"] <= later["started_at"] for earlier, later in pairwise(jobs))
