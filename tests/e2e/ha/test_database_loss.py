"""The database is lost, promoted, or out of one server's reach: nothing acknowledged is lost, nothing promised by two."""

from urllib.parse import parse_qs, urlsplit

import httpx2

from devtools.postgres import replicated_postgres
from tests.e2e.ha.several import Orchestrator, RunningJob, Several, term_at
from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.e2e.proxy import Proxy

UNANSWERED = 0


def test_a_primary_torn_from_its_standby_keeps_nobody_leading_and_all_goes_on_with_the_standby(
    bare_world: World,
) -> None:
    """First it lives on, and its servers still reach it: what is written there nobody else would ever know. Then it dies."""
    with replicated_postgres() as databases:
        several = Several(bare_world, databases.url)
        bare_world.settings["SIMPLETUNER_HEARTBEAT_TIMEOUT"] = "90"
        leader, follower = several.pair()
        job = RunningJob(several)
        acknowledged = [bare_world.submit(bare_world.command("true"), priority=-50) for _ in range(10)]
        databases.promote()
        wait_until(lambda: heartbeat(leader, job.worker.token) == 503, "the leader promises nothing more", 20)
        assert {heartbeat(leader, job.worker.token) for _ in range(10)} <= {503, UNANSWERED}
        assert follower.role != "leader"
        databases.kill_primary()
        several.accepted_submit(bare_world.command("true"), follower)
        wait_until(lambda: {leader.role, follower.role} == {"leader", "follower"}, "one leads, one follows")
        for job_id in acknowledged:
            assert bare_world.job(job_id)["status"] in ("queued", "dispatched", "running", "completed")
        job.ends_undisturbed()
        assert bare_world.get("/api/audit/verify")["valid"] is True


def heartbeat(at: Orchestrator, token: str) -> int:
    """What it is answered; whoever waits for a write that nobody confirms any more is answered nothing."""
    try:
        return httpx2.post(
            f"{at.url}/api/workers/heartbeat",
            json={"status": "busy"},
            headers={"x-worker-token": token},
            trust_env=False,
            timeout=3,
        ).status_code
    except httpx2.TimeoutException:
        return UNANSWERED


def test_a_leader_cut_from_the_database_alone_is_replaced_and_promises_nothing(several: Several) -> None:
    parts = urlsplit(several.database_url)
    folder = parse_qs(parts.query)["host"][0]
    with Proxy(f"{folder}/.s.PGSQL.5432") as to_database:
        through = f"postgresql://{parts.username}@127.0.0.1:{to_database.port}{parts.path}?sslmode=disable"
        leader = several.add().start(SIMPLETUNER_DATABASE_URL=through)
        follower = several.add().start()
        follower.becomes("follower")
        several.world.url = follower.url
        job = RunningJob(several)
        before = term_at(follower)
        to_database.stall()
        several.accepted_submit(several.world.command("true"), follower, within_s=20)
        assert term_at(follower) > before
        refused = httpx2.get(f"{leader.url}/health/ready", trust_env=False, timeout=20)
        assert refused.status_code == 503
        job.ends_undisturbed()
        to_database.heal()
        leader.becomes("follower")
        assert follower.role == "leader"
