"""The database is lost, promoted, or out of one server's reach: nothing acknowledged is lost, nothing promised by two."""

from urllib.parse import parse_qs, urlsplit

import httpx2

from devtools.postgres import replicated_postgres
from tests.e2e.ha.several import RunningJob, Several, term_at
from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.e2e.proxy import Proxy


def test_a_lost_primary_is_followed_by_its_synchronous_standby_with_all_that_was_acknowledged(
    bare_world: World,
) -> None:
    with replicated_postgres() as databases:
        several = Several(bare_world, databases.url)
        leader, follower = several.pair()
        job = RunningJob(several)
        acknowledged = [bare_world.submit(bare_world.command("true"), priority=-50) for _ in range(20)]
        databases.kill_primary()
        databases.promote()
        several.accepted_submit(bare_world.command("true"), follower)
        wait_until(lambda: {leader.role, follower.role} == {"leader", "follower"}, "one leads, one follows")
        for job_id in acknowledged:
            assert bare_world.job(job_id)["status"] in ("queued", "dispatched", "running", "completed")
        job.ends_undisturbed()
        bare_world.becomes(acknowledged[-1], "completed")
        assert bare_world.get("/api/audit/verify")["valid"] is True


def test_a_primary_whose_standby_was_promoted_keeps_nobody_leading(bare_world: World) -> None:
    """It lives on, and its leader still reaches it: what it writes there, nobody else will ever know."""
    with replicated_postgres() as databases:
        several = Several(bare_world, databases.url)
        leader = several.add().start()
        bare_world.url = leader.url
        worker = bare_world.create_worker("torn")
        headers = {"x-worker-token": worker.token}

        def heartbeat() -> int:
            return httpx2.post(
                f"{leader.url}/api/workers/heartbeat",
                json={"status": "idle"},
                headers=headers,
                trust_env=False,
            ).status_code

        wait_until(lambda: heartbeat() == 200, "the leader answers")
        databases.promote()
        wait_until(lambda: heartbeat() == 503, "it promises nothing more", 10)
        assert {heartbeat() for _ in range(20)} == {503}


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
