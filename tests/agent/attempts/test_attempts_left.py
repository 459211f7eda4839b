"""Whatever a job or a full disk left behind, its attempt ends, is given back or put away, and the worker starts."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from simpletuner_fleet.agent import program
from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.agent import Agent
from simpletuner_fleet.agent.attempts.attempts import Attempts
from simpletuner_fleet.agent.attempts.endings import AttemptEnding, final_report
from simpletuner_fleet.agent.attempts.retention import NOT_STORED, KeepLimits
from simpletuner_fleet.agent.audit_memory import AuditMemory
from simpletuner_fleet.agent.data.data_cache import DataCache
from simpletuner_fleet.agent.data.datasets import Datasets
from simpletuner_fleet.agent.data.kept_caches import DATA
from simpletuner_fleet.agent.guard import completion
from simpletuner_fleet.agent.guard.runner import Runner, RunningTrainer
from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.inbox import Inbox, Phase
from simpletuner_fleet.agent.isolation.walls import NO_WALLS, Walls, WallSurroundings
from simpletuner_fleet.agent.machine_facts import MachineFacts
from simpletuner_fleet.agent.metrics import reading_time
from simpletuner_fleet.agent.ship.spool import Spool
from simpletuner_fleet.agent.state_dir import AttemptDir, StateDir
from simpletuner_fleet.agent.token_source import TokenSource
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.connecting import ShimTrust
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.training.completion import NOT_CHECKED
from simpletuner_fleet.core.workers.start_trouble import Blame
from simpletuner_fleet.protocol.messages import Heartbeat, HeartbeatAnswer, JobSubmit
from simpletuner_fleet.protocol.problems import TYPE_PREFIX
from simpletuner_fleet.trainers.command import CommandTrainer
from simpletuner_fleet.trainers.contract import Paths, Surroundings
from simpletuner_fleet.trainers.installed import trainers_for
from simpletuner_fleet.trainers.registry import Registry
from tests.agent.answering import answering
from tests.agent.metrics.test_tensorboard import NAME as EVENTS
from tests.agent.metrics.test_tensorboard import record
from tests.agent.shim_fixtures import Undying, alive, order_for, shim_of, start, until

OFFER = JobSubmit(
    job_id="j_1",
    attempt=1,
    attempt_id="a_1",
    epoch=3,
    config_name="c",
    config={"command": ["true"]},
    trainer="command",
    upload_endpoint="",
    upload_token="x",
)
ENDED_WELL: dict[str, Any] = {
    "exit_code": 0,
    "signal": None,
    "reason": "exited",
    "error": None,
    "ended_at": 1.0,
}


@asynccontextmanager
async def worker(
    state: StateDir, walls: Walls = NO_WALLS, client: OrchestratorClient | None = None
) -> AsyncIterator[tuple[Attempts, Runner]]:
    client = client or OrchestratorClient("http://127.0.0.1:9", lambda: "t", None)
    cache = DataCache.open(state.path / "data-cache", 10**9)
    async with Runner() as runner:
        trainers = trainers_for(None, dict(os.environ))
        data = Datasets(cache, client)
        attempts = Attempts(state, runner, trainers, client, ShimTrust(), data=data, walls=walls)
        yield attempts, runner
        attempts.senders.hurry()
    await client.close()
    cache.close()


def agent_of(state: StateDir, attempts: Attempts, client: OrchestratorClient | None = None) -> Agent:
    token = tokens.make(tokens.WORKER, bytes(32))
    return Agent(
        MachineFacts(name="w", version="1", home=state.home, gpus=(), trainers=("command",), labels={}),
        Inbox(persistent=True, max_jobs=2),
        client or OrchestratorClient("http://127.0.0.1:9", lambda: token, None),
        TokenSource(token, state.path / "token"),
        Spool(state.spool_dir),
        lambda events: attempts,
        AuditMemory(state.path / "audit_heads.jsonl"),
    )


def left(
    state: StateDir, attempt_id: str = "a_1", *, began: bool = True, exit: dict[str, Any] | None = None
) -> AttemptDir:
    """An attempt as an agent that was killed leaves it."""
    attempt = state.create_attempt(attempt_id)
    attempt.save_order(
        OFFER if attempt_id == OFFER.attempt_id else replace(OFFER, job_id="j_2", attempt_id=attempt_id)
    )
    if began:
        attempt.claim()
        (attempt.path / "trainer.json").write_text("{}")
    if exit:
        (attempt.path / "exit.json").write_text(json.dumps(exit))
    return attempt


def keep_from_being_written(attempt: AttemptDir) -> None:
    """As on a full disk: an order cannot be written anew."""
    (attempt.path / ".order.json.tmp").mkdir()


def nested_too_deep(folder: Path) -> None:
    """Makes folders whose path is longer than the system takes."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


async def test_an_attempt_whose_end_cannot_be_checked_is_reported_and_not_as_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> AttemptEnding:
        raise OverflowError("int too large to convert to float")

    monkeypatch.setattr(completion, "checked", fail)
    with StateDir.open(tmp_path / "worker") as state:
        left(state, exit=ENDED_WELL)
        left(state, "a_2", exit=ENDED_WELL)
        async with worker(state) as (attempts, _runner):
            left_over = await attempts.find_again()
            endings = [await attempts.judged(one.offer, one.ending) for one in left_over if one.ending]
    assert [one.offer.attempt_id for one in left_over] == ["a_1", "a_2"]
    assert len(endings) == 2
    for ending in endings:
        report = final_report(None, ending)
        assert (report.status, report.exit_code) == ("failed", 0)
        assert "could not be checked" in (report.error or "")


async def test_an_attempt_that_takes_long_to_judge_holds_up_no_other_and_not_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_time, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(completion, "EVENTS_WITHIN_S", 0.0)
    with StateDir.open(tmp_path / "worker") as state:
        for attempt_id in ("a_1", "a_2"):
            attempt = left(state, attempt_id, exit=ENDED_WELL)
            order = attempt.load_order()
            assert order
            attempt.save_order(replace(order, config={**order.config, "expected_steps": 20}))
            (attempt.output_dir / EVENTS).write_bytes(record(b"\x0a\x00" * 30_000) * 3)
        async with worker(state) as (attempts, _runner):
            agent = agent_of(state, attempts)
            await program._take_up(agent)
            held = agent.inbox.held
            assert [holding.phase for holding in held.values()] == [Phase.RUNNING, Phase.RUNNING]
            await until(lambda: all(holding.phase is Phase.FINISHED for holding in held.values()))
            await until(lambda: len(agent.delivery.waiting()) == 2)
            reports = [report for _, report in agent.delivery.waiting()]
            await agent.drop_work()
    assert [report.error for report in reports] == [NOT_CHECKED, NOT_CHECKED]


async def test_a_shim_that_does_not_answer_keeps_no_other_trainer_from_being_taken_up(tmp_path: Path) -> None:
    sleep = "import time; time.sleep(60)"
    with StateDir.open(tmp_path / "worker") as state:
        folders = [left(state, attempt_id, began=False).path for attempt_id in ("a_1", "a_2")]
        async with Runner() as earlier:
            first, second = [
                await start(earlier, order_for(folder, sleep, adopt_grace_s=20.0), 60.0) for folder in folders
            ]
        assert first.pid
        assert second.pid
        frozen = shim_of(first.pid)
        os.kill(frozen, signal.SIGSTOP)
        try:
            async with worker(state) as (attempts, _runner):
                finding = asyncio.create_task(attempts.find_again())
                await until(lambda: Turn("j_2", OFFER.epoch) in attempts._running)
                assert not finding.done()
                os.kill(frozen, signal.SIGCONT)
                attempts_found = await finding
                assert [one.running.pid for one in attempts_found if one.running] == [first.pid, second.pid]
                for one in attempts_found:
                    assert one.running
                    one.running.stop(0.0)
                    await one.running.release()
        finally:
            os.kill(frozen, signal.SIGCONT)
    for running in (first, second):
        assert running._shim.child is not None
        await asyncio.to_thread(running._shim.child.wait, 10)


async def test_an_attempt_that_cannot_be_taken_up_is_ended_and_given_back_and_the_others_are_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StateDir.open(tmp_path / "worker") as state:
        broken = left(state, began=False)
        left(state, "a_2", exit=ENDED_WELL)
        async with Runner() as earlier:
            running = await start(earlier, order_for(broken.path, "import time; time.sleep(60)"), 60.0)
        assert running.pid is not None
        async with worker(state) as (attempts, _runner):

            def refuse(*_: object) -> None:
                raise RuntimeError("a plug-in that was half upgraded")

            monkeypatch.setattr(attempts, "_watch", refuse)
            left_over = await attempts.find_again()
        endings = {one.offer.attempt_id: one.ending for one in left_over}
        assert endings.keys() == {"a_1", "a_2"}
        assert endings["a_1"]
        assert final_report(None, endings["a_1"]).status == "released"
        assert endings["a_2"]
        assert final_report(None, endings["a_2"]).status == "completed"
        assert not alive(running.pid)
    assert running._shim.child is not None
    await asyncio.to_thread(running._shim.child.wait, 10)


async def test_an_attempt_without_a_guardian_holds_its_gpus_until_its_last_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StateDir.open(tmp_path / "worker") as state:
        attempt = left(state)
        undying = Undying("a_1", tmp_path, monkeypatch)
        async with worker(state) as (attempts, _runner):
            agent = agent_of(state, attempts)
            await program._take_up(agent)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await agent.finish_tasks()
            holding = agent.inbox.held[turn_of(OFFER)]
            assert holding.phase is Phase.RUNNING
            undying.die()
            await until(lambda: holding.phase is Phase.FINISHED)
            (spooled,) = await until(lambda: agent.delivery._backlog)
            assert spooled.report.status == "released"
            assert spooled.report.error == "the trainer's supervisor was killed"
            assert not attempt.retired
            await agent.drop_work()


async def test_a_gpu_that_the_orchestrator_takes_for_free_is_withheld_while_something_lives_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Heartbeat] = []
    with StateDir.open(tmp_path / "worker") as state:
        left(state).save_order(replace(OFFER, gpus=["GPU-1"]))
        undying = Undying("a_1", tmp_path, monkeypatch)
        async with (
            answering(
                lambda: (HTTPStatus.OK, msgspec.to_builtins(HeartbeatAnswer(status="busy"))),
                lambda body: heard.append(msgspec.json.decode(body, type=Heartbeat)),
            ) as client,
            worker(state) as (attempts, _runner),
        ):
            agent = agent_of(state, attempts, client)
            await program._take_up(agent)
            agent.perform(agent.inbox.went_stale(turn_of(OFFER)))
            await agent.heartbeat()
            undying.die()
            await until(lambda: not agent.inbox.held)
            await agent.heartbeat()
            await agent.drop_work()
    samples = [(len(one.attempts or ()), [(gpu.uuid, gpu.healthy) for gpu in one.gpus]) for one in heard]
    assert samples == [(1, [("GPU-1", False)]), (0, [("GPU-1", True)])]


async def test_a_folder_whose_order_was_never_written_does_not_stay(tmp_path: Path) -> None:
    """Its agent died while it prepared the attempt. One whose order the disk has lost is kept as others are."""
    with StateDir.open(tmp_path / "worker") as state:
        never_begun, order_lost = state.create_attempt("a_1"), left(state, "a_2")
        (never_begun.config_dir / "config.json").write_text("{}")
        order_lost.order_file.write_bytes(b"")
        async with worker(state) as (attempts, _runner):
            assert await attempts.find_again() == []
            assert not never_begun.path.exists()
            assert order_lost.retired
            assert await attempts.tidy(KeepLimits(attempts=0)) == ["a_2"]


async def test_an_attempt_that_a_full_disk_kept_from_being_noted_as_begun_is_taken_up(tmp_path: Path) -> None:
    with StateDir.open(tmp_path / "worker") as state:
        attempt = left(state, began=False)
        async with Runner() as earlier:
            order = order_for(attempt.path, "import time; time.sleep(60)", adopt_grace_s=60.0)
            began = await start(earlier, order, 60.0)
        for note in ("begun", "trainer.json"):
            (attempt.path / note).unlink()
        async with worker(state) as (attempts, _runner):
            (attempt_found,) = await attempts.find_again()
            assert attempt_found.running
            assert attempt_found.running.pid == began.pid
            attempt_found.running.stop(0.0)
            await attempt_found.running.release()
    assert began._shim.child is not None
    await asyncio.to_thread(began._shim.child.wait, 10)


class HalfUpgraded(CommandTrainer):
    """A plug-in that starts a trainer and cannot tell where its numbers are."""

    def progress_files(self, paths: Paths) -> list[Path]:
        raise RuntimeError("half upgraded")


async def test_a_trainer_that_nobody_can_watch_is_ended_and_its_attempt_too(tmp_path: Path) -> None:
    offer = replace(OFFER, config={"command": ["sh", "-c", "echo $$ > pid; exec sleep 60"]})
    with StateDir.open(tmp_path / "worker") as state:
        async with Runner() as runner:
            client = OrchestratorClient("http://127.0.0.1:9", lambda: "t", None)
            registry = Registry(
                [HalfUpgraded(Surroundings(environment=dict(os.environ), trainer_python=sys.executable))]
            )
            attempts = Attempts(state, runner, registry, client, ShimTrust())
            attempts.prepare(offer)
            ending = await attempts.start(offer, 60.0, boottime())
            running = attempts._running[turn_of(offer)]
            assert ending
            assert (ending.reason, ending.blame) == (EndReason.START_FAILED, Blame.WORKER)
            assert "half upgraded" in (ending.error or "")
            assert running.pid
            assert not alive(running.pid)
            await attempts.forget(turn_of(offer))
            await client.close()


async def test_a_full_disk_does_not_keep_a_worker_from_starting_after_a_power_cut(tmp_path: Path) -> None:
    with StateDir.open(tmp_path / "worker") as state:
        keep_from_being_written(left(state))
        async with worker(state) as (attempts, _runner):
            assert await attempts.find_again() == []


@pytest.mark.parametrize("where", ["data", "cache"])
async def test_whatever_a_job_made_of_its_folders_its_shim_its_user_and_its_cache_are_free_again(
    tmp_path: Path, where: str
) -> None:
    home = tmp_path / "worker"
    walls = _walls(home) if where == "cache" else NO_WALLS
    offer = replace(OFFER, config={"a": 1}, trainer="simpletuner")
    with StateDir.open(home) as state:
        async with worker(state, walls) as (attempts, runner):
            turn, attempt = turn_of(offer), state.create_attempt("a_1")
            attempt.save_order(offer)
            running = await start(runner, order_for(attempt.path, "pass"))
            await running.wait()
            attempts._folders[turn], attempts._running[turn] = "a_1", running
            attempts.preparation.take_caches(offer)
            cache = attempts.preparation.caches.place_of("a_1")
            assert cache
            shown = cache / DATA
            shown.mkdir()
            nested_too_deep(shown if where == "data" else cache)
            assert attempts.data
            attempts.data.show_in("a_1", shown)

            await attempts.forget(turn)

            assert running.is_over, "its shim has left"
            assert attempts.preparation.caches.place_of("a_1") is None
            assert attempt.retired
            assert b"upload_token" not in attempt.order_file.read_bytes()
            assert turn not in attempts._running


def reported_alone(state: StateDir) -> AttemptDir:
    """One whose end its shim has reported while there was no agent."""
    attempt = left(state, exit={**ENDED_WELL, "exit_code": None, "signal": 15, "reason": "stopped"})
    attempt.output_log.write_text("what it printed\n")
    (attempt.path / "reported.json").write_text("{}")
    return attempt


@asynccontextmanager
async def told_nothing_is_taken(state: StateDir) -> AsyncIterator[Attempts]:
    code, status = Invalid.code, HTTPStatus.UNPROCESSABLE_ENTITY
    problem = {"type": TYPE_PREFIX + code, "code": code, "status": status}
    async with (
        answering(lambda: (status, problem)) as client,
        worker(state, client=client) as (attempts, _runner),
    ):
        yield attempts


async def test_what_of_an_attempt_nobody_took_keeps_its_folder(tmp_path: Path) -> None:
    with StateDir.open(tmp_path / "worker") as state:
        attempt = reported_alone(state)
        async with told_nothing_is_taken(state) as attempts:
            assert await attempts.find_again() == []
            await until(lambda: attempt.retired)
        assert (attempt.path / NOT_STORED).exists()


async def test_a_folder_that_cannot_be_marked_as_the_only_place_of_something_is_not_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its disk takes no new file: whoever makes room there would remove what is nowhere else."""
    with StateDir.open(tmp_path / "worker") as state:
        attempt = reported_alone(state)
        (attempt.path / NOT_STORED).symlink_to(tmp_path / "no such folder" / "file")
        async with told_nothing_is_taken(state) as attempts:
            assert await attempts.find_again() == []
            await until(lambda: attempt.retired or "could not be marked as done" in caplog.text)
        assert not attempt.retired


def _walls(home: Path) -> Walls:
    """Of a kind that this machine need not allow: only its cleaning is asked for."""
    about = WallSurroundings(home="/root", environment={}, pythons=(), grants=(), hidden=())
    return Walls("namespace", about, home, 1)


async def test_a_trainer_is_taken_up_again_however_much_of_its_output_is_to_be_hidden(tmp_path: Path) -> None:
    hidden = [f"{number:02}é" + "s" * 16_000 for number in range(32)]
    folder = tmp_path / "a_1"
    async with Runner(key="k") as first:
        order = order_for(folder, "import time; time.sleep(60)", hidden=hidden, adopt_grace_s=20.0)
        began = await start(first, order, 60.0)
    async with Runner(key="k") as second:
        taken_up = await second.adopt(folder)
        assert isinstance(taken_up, RunningTrainer)
        assert taken_up.hidden == hidden
        assert began.pid is not None
        assert alive(began.pid)
        taken_up.stop(0.0)
        assert (await taken_up.wait()).reason is EndReason.STOPPED
        await taken_up.release()
    assert began._shim.child is not None
    await asyncio.to_thread(began._shim.child.wait, 10)
