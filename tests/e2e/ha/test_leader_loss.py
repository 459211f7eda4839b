"""The leader is lost in every way there is: another one takes over, and nothing is promised by two."""

import re
import signal
import socket
from collections.abc import Callable

import httpx2
import psycopg

from devtools.postgres import postgres_server
from tests.e2e.ha.several import Orchestrator, RunningJob, Several, term_at
from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.e2e.proxy import Proxy

TERM = re.compile(rb"x-fleet-term: (\d+)")


def test_a_killed_leader_is_replaced_and_the_running_job_goes_on(several: Several) -> None:
    leader, follower = several.pair()
    job = RunningJob(several)
    before = term_at(follower)
    leader.running.kill()
    next_job = several.accepted_submit(several.world.command("true"), follower, within_s=20)
    assert term_at(follower) > before
    job.ends_undisturbed()
    several.world.becomes(next_job, "completed")
    assert follower.role == "leader"


def test_a_frozen_leader_is_replaced_and_promises_nothing_when_it_goes_on(several: Several) -> None:
    leader, follower = several.pair()
    job = RunningJob(several)
    leader.running.signal(signal.SIGSTOP)
    try:
        several.accepted_submit(several.world.command("true"), follower, within_s=20)
        new_term = term_at(follower)
        answers = heartbeats_sent(leader, job.worker.token, 5)
    finally:
        leader.running.signal(signal.SIGCONT)
    for answer in answers():
        if answer.startswith(b"HTTP/1.1 200 "):
            spoken = TERM.search(answer)
            assert spoken, answer
            assert int(spoken[1]) == new_term, "the old leader promised something, although another led"
        else:
            assert answer.startswith(b"HTTP/1.1 503 "), answer
    leader.becomes("follower")
    assert follower.role == "leader"
    job.ends_undisturbed()


def heartbeats_sent(leader: Orchestrator, token: str, count: int) -> Callable[[], list[bytes]]:
    """To a server that cannot read them yet; what is returned reads the answers."""
    body = b'{"status":"idle"}'
    head = (
        f"POST /api/workers/heartbeat HTTP/1.1\r\nhost: 127.0.0.1:{leader.port}\r\nx-worker-token: {token}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    ).encode()
    sockets = [socket.create_connection(("127.0.0.1", leader.port)) for _ in range(count)]
    for each in sockets:
        each.sendall(head + body)

    def answers() -> list[bytes]:
        read = []
        for each in sockets:
            each.settimeout(30)
            with each:
                read.append(each.recv(65536))
        assert len(read) == count
        return read

    return answers


def test_ended_database_sessions_cost_the_leader_nothing_but_a_moment(several: Several) -> None:
    leader, follower = several.pair()
    job = RunningJob(several)
    for _ in range(3):
        end_sessions(several.database_url)
    several.accepted_submit(several.world.command("true"), follower)
    wait_until(lambda: {leader.role, follower.role} == {"leader", "follower"}, "one leads, one follows")
    job.ends_undisturbed()


def end_sessions(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            b" WHERE application_name = 'simpletuner-fleet' AND datname = current_database()"
        )


def test_a_restarted_database_is_waited_for(bare_world: World) -> None:
    with postgres_server() as database:
        several = Several(bare_world, database.get_uri())
        leader, follower = several.pair()
        job = RunningJob(several)
        database.stop()
        refused = follower.call("POST", "/api/admin/workers", {"name": "nobody"})
        assert refused.status_code == 503, refused.text
        database.start()
        several.accepted_submit(bare_world.command("true"), follower)
        wait_until(lambda: {leader.role, follower.role} == {"leader", "follower"}, "one leads, one follows")
        job.ends_undisturbed()


def test_a_leader_that_workers_cannot_reach_is_reached_through_the_others(several: Several) -> None:
    leader, follower = several.pair()
    with Proxy(leader.port) as to_leader:
        job = RunningJob(several, url=f"{to_leader.url},{follower.url}")
        term = term_at(follower)
        to_leader.stall()
        several.world.goes_on(job.id)
        seen_at = job.worker.seen["last_heartbeat"]
        wait_until(lambda: job.worker.seen["last_heartbeat"] != seen_at, "the worker is heard of again")
        # It may have been heard registering anew: then its stream is opened next.
        wait_until(lambda: job.worker.status == "busy", "its stream is open again")
        assert term_at(follower) == term
        job.ends_undisturbed()


def test_what_a_leader_cannot_be_sure_of_is_refused_in_our_own_words(several: Several) -> None:
    """Its sessions hang: it cannot know whether it still leads."""
    leader, follower = several.pair()
    follower.running.signal(signal.SIGSTOP)
    try:
        with psycopg.connect(several.database_url) as blocker:
            blocker.execute(b"LOCK TABLE leadership IN ACCESS EXCLUSIVE MODE")
            wait_until(lambda: leader.call("GET", "/api/jobs").status_code == 503, "it is not sure")
            answer = leader.call("GET", "/api/jobs")
            assert (answer.json()["code"], answer.headers["retry-after"]) == ("not_leader", "1")
            live = httpx2.get(f"{leader.url}/health/live", trust_env=False)
            assert live.status_code == 200
        leader.becomes("leader")
    finally:
        follower.running.signal(signal.SIGCONT)
