"""How long trainers may run without news."""

import asyncio
import math
import os
from pathlib import Path

import msgspec
import pytest

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.agent import DISOWNED_AFTER_S, Agent
from simpletuner_fleet.agent.attempts.attempts import Attempts
from simpletuner_fleet.agent.audit_memory import AuditMemory
from simpletuner_fleet.agent.guard.runner import Runner
from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.inbox import Inbox, Phase
from simpletuner_fleet.agent.lease import LATE_AFTER_S, Deadlines
from simpletuner_fleet.agent.machine_facts import MachineFacts
from simpletuner_fleet.agent.program import WorkerSettings, adopted_within_s
from simpletuner_fleet.agent.ship.spool import Spool
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.agent.token_source import TokenSource
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.connecting import ShimTrust
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.protocol.messages import HeartbeatAnswer, JobSubmit
from simpletuner_fleet.trainers.registry import Registry

TOKEN = tokens.make(tokens.WORKER, bytes(32))


def agent_in(folder: Path, url: str = "http://127.0.0.1:9") -> Agent:
    state = StateDir.open(folder)
    client = OrchestratorClient(url, lambda: TOKEN, None)
    machine = MachineFacts(name="w", version="0", home=state.home, gpus=(), trainers=(), labels={})
    return Agent(
        machine,
        Inbox(persistent=True),
        client,
        TokenSource(TOKEN, folder / "none"),
        Spool(state.spool_dir),
        lambda events: Attempts(state, Runner(), Registry([]), client, ShimTrust(), events=events),
        AuditMemory(folder / "audit_heads.jsonl"),
    )


async def test_a_lease_ends_before_the_orchestrator_gives_the_job_away(tmp_path: Path) -> None:
    agent = agent_in(tmp_path)
    assert agent.lease_s == 110
    agent.heartbeat_timeout_s = 1.0
    assert agent.lease_s == pytest.approx(0.85)


async def test_an_orchestrator_that_is_dead_extends_a_lease_that_lasts(tmp_path: Path) -> None:
    agent = agent_in(tmp_path)
    agent.heard_at = before = boottime() - 60
    agent.orchestrator_is_dead(boottime())
    assert agent.heard_at > before + 59


async def test_an_orchestrator_that_is_dead_revives_no_lease_that_ran_out(tmp_path: Path) -> None:
    agent = agent_in(tmp_path)
    agent.heard_at = before = boottime() - 111
    agent.orchestrator_is_dead(boottime())
    assert agent.heard_at == before


async def test_a_refusal_says_nothing_where_the_orchestrators_own_socket_was_never_seen(
    tmp_path: Path,
) -> None:
    """Port 9 refuses: who says that the orchestrator would be there?"""
    agent = agent_in(tmp_path)
    agent.heard_at = before = boottime() - 60
    await agent.connection_refused()
    assert agent.heard_at == before


async def test_what_runs_ends_once_the_token_was_refused_for_long_after_the_lease(tmp_path: Path) -> None:
    """A rotation that nobody finished, a worker that was deleted: a paused trainer would keep its GPU for ever."""
    agent = agent_in(tmp_path)
    offer = JobSubmit(
        job_id="j_1",
        attempt_id="a_1",
        epoch=1,
        attempt=1,
        config_name="c",
        config={},
        trainer="command",
        upload_endpoint="",
    )
    agent.inbox.adopted(offer, Phase.RUNNING)
    given_up_at = agent.answered_at + agent.lease_s + DISOWNED_AFTER_S
    assert not agent.disowned(given_up_at - 1)
    assert agent.inbox.held[turn_of(offer)].stopping is None
    assert agent.disowned(given_up_at)
    assert agent.inbox.held[turn_of(offer)].stopping is EndReason.STALE


async def test_a_new_agent_wakes_nothing_before_it_has_had_an_answer(tmp_path: Path) -> None:
    """What it takes up may be paused, and its job given away, before the orchestrator died."""
    agent = agent_in(tmp_path)
    agent.orchestrator_is_dead(boottime())
    assert agent.heard_at == -math.inf


async def test_a_lease_counts_from_when_the_answered_heartbeat_was_sent(tmp_path: Path) -> None:
    """The orchestrator may have read it long before its answer arrives, and counts from there."""
    slow_s = 0.4
    body = msgspec.json.encode(HeartbeatAnswer(status="idle"))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(slow_s)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        agent = agent_in(tmp_path, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        sent_at = boottime()
        await agent.heartbeat()
        assert sent_at <= agent.heard_at < sent_at + slow_s
        await agent.client.close()


@pytest.mark.parametrize(
    ("chosen", "environment", "within_s"),
    [
        (None, {}, 2.0),
        (None, {"SYSTEMD_EXEC_PID": str(os.getpid())}, 45.0),
        (None, {"SYSTEMD_EXEC_PID": str(os.getppid())}, 45.0),
        (None, {"SYSTEMD_EXEC_PID": "1"}, 2.0),
        (7.0, {"SYSTEMD_EXEC_PID": str(os.getpid())}, 7.0),
    ],
)
def test_trainers_wait_for_an_agent_that_somebody_starts_again(
    chosen: float | None, environment: dict[str, str], within_s: float
) -> None:
    settings = WorkerSettings(
        url="", token=None, token_file=None, name="w", persistent=True, restarted_within_s=chosen
    )
    assert adopted_within_s(settings, environment) == within_s


def late(deadlines: Deadlines, *, paused: bool = False) -> tuple[float, str] | None:
    seen = deadlines.late(paused=paused)
    return (seen.since, str(seen.reason)) if seen else None


def test_a_guardian_is_late_a_moment_after_a_lease_or_a_time_limit() -> None:
    assert late(Deadlines()) is None
    for what in ("pause", "stop"):
        assert late(Deadlines(on_partition=what, lease_until=100.0)) == (100.0 + LATE_AFTER_S, "fenced")
    assert late(Deadlines(on_partition="continue", lease_until=100.0)) is None
    both = Deadlines(on_partition="pause", lease_until=100.0, time_limit_at=90.0)
    assert late(both) == (90.0 + LATE_AFTER_S, "time_limit")
    both.renewed(80.0, 70.0, paused=False)
    assert late(both) == (80.0 + LATE_AFTER_S, "fenced")


def test_what_was_asked_to_stop_ends_as_stopped_whatever_passes_first() -> None:
    deadlines = Deadlines(on_partition="pause", lease_until=100.0)
    deadlines.stop_asked(90.0)
    deadlines.stop_asked(600.0)
    assert late(deadlines) == (90.0, "stopped")
    deadlines.renewed(50.0, 40.0, paused=False)
    assert late(deadlines) == (50.0 + LATE_AFTER_S, "stopped")


def test_what_is_paused_is_late_only_where_there_is_a_lease_again() -> None:
    deadlines = Deadlines(on_partition="pause", lease_until=100.0)
    deadlines.is_paused(100.5)
    assert late(deadlines, paused=True) is None
    deadlines.renewed(200.0, 150.0, paused=True)
    deadlines.renewed(230.0, 180.0, paused=True)
    assert late(deadlines, paused=True) == (150.0 + LATE_AFTER_S, "fenced")
    deadlines.is_resumed()
    deadlines.is_paused(230.0)
    assert late(deadlines, paused=True) is None
    # The renewal was on its way when the pause was told.
    deadlines.renewed(300.0, 231.0, paused=False)
    deadlines.is_paused(232.0)
    assert late(deadlines, paused=True) == (232.0 + LATE_AFTER_S, "fenced")


def test_who_may_save_at_the_time_limit_has_the_time_for_it() -> None:
    deadlines = Deadlines(time_limit_at=90.0, time_limit_save_s=60.0, kill_grace_s=30.0)
    deadlines.saves(91.0)
    assert late(deadlines) == (181.0 + LATE_AFTER_S, "time_limit")
