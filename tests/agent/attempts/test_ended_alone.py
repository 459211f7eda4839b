"""A node that was restarted ends what it finds of a training over several nodes, and starts whatever that does."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from simpletuner_fleet.agent.attempts.attempts import Attempts
from simpletuner_fleet.agent.attempts.preparation import Preparation
from simpletuner_fleet.agent.guard import runner as runner_module
from simpletuner_fleet.agent.guard.runner import Runner, RunningTrainer, TrainerExit
from simpletuner_fleet.agent.isolation.walls import NO_WALLS
from simpletuner_fleet.agent.nodes.ranks import NodeParts
from simpletuner_fleet.agent.state_dir import AttemptDir, StateDir
from simpletuner_fleet.core.jobs.job import EndReason, Outcome
from simpletuner_fleet.protocol.messages import JobSubmit
from tests.agent.answering import OFFER
from tests.agent.shim_fixtures import Undying as UndyingProcess


class Undying(RunningTrainer):
    """A trainer that hangs in a driver: not even SIGKILL ends it."""

    def __init__(self) -> None:
        self.stopped: list[float] = []

    async def wait(self) -> TrainerExit:
        await asyncio.Event().wait()
        raise AssertionError

    def stop(self, grace_s: float, *, outcome: Outcome = Outcome.LOST) -> None:
        self.stopped.append(grace_s)


class OneFound(Runner):
    def __init__(self, trainer: RunningTrainer) -> None:
        self.trainer, self.ended = trainer, list[Path]()

    async def adopt(self, attempt_dir: Path) -> RunningTrainer:
        return self.trainer

    async def end(self, attempt_dir: Path) -> None:
        self.ended.append(attempt_dir)

    def warm_up(self) -> None: ...


class NothingPrepared(Preparation):
    def __init__(self) -> None: ...

    async def take_up(self, running: list[JobSubmit]) -> None: ...


async def test_a_part_that_does_not_die_keeps_its_worker_from_starting_only_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "DIES_WITHIN_S", 0.1, raising=False)
    attempt, runner = AttemptDir(tmp_path / "a"), OneFound(Undying())
    attempt.path.mkdir()
    (attempt.path / "trainer.json").touch()
    attempts = object.__new__(Attempts)
    attempts._runner = runner
    async with asyncio.timeout(10):
        (attempt_found,) = await attempts._find_or_end(attempt, replace(OFFER, nodes=2))
    assert attempt_found.ending is not None
    assert (attempt_found.running, attempt_found.ending.reason) == (None, EndReason.AGENT_LOST)
    assert runner.ended == [attempt.path]


async def test_a_node_follows_once_the_last_process_of_what_ran_there_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StateDir.open(tmp_path / "state") as state:
        undying = UndyingProcess(state.create_attempt("a").path.name, tmp_path, monkeypatch)
        async with Runner() as runner:
            parts = object.__new__(NodeParts)
            parts._state, parts._runner, parts._walls = state, runner, NO_WALLS
            parts._preparation = NothingPrepared()
            cleaning = asyncio.create_task(parts.clean_up())
            await asyncio.wait({cleaning}, timeout=0.3)
            assert not cleaning.done()
            undying.die()
            async with asyncio.timeout(10):
                await cleaning
        assert state.attempts() == []
