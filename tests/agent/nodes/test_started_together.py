"""A training over several nodes begins on all of them, or ends on all."""

import asyncio
from pathlib import Path

from msgspec.structs import replace

from simpletuner_fleet.agent.guard.runner import RunningTrainer, TrainerExit
from simpletuner_fleet.agent.nodes.members import NodeMember
from simpletuner_fleet.agent.nodes.messages import RankEnded
from simpletuner_fleet.agent.nodes.spanned import OTHERS_END_WITHIN_S, FollowerPart, SpannedAttempt
from simpletuner_fleet.core.jobs.job import EndReason, Outcome
from simpletuner_fleet.trainers.contract import NodeSpan
from tests.agent.answering import OFFER


class OwnPart(RunningTrainer):
    """The first node's part: it meets nobody, and runs until it is stopped."""

    def __init__(self) -> None:
        self.stopped: list[float] = []
        self._over = asyncio.Event()

    async def wait(self) -> TrainerExit:
        await self._over.wait()
        return TrainerExit(reason=EndReason.STOPPED)

    def stop(self, grace_s: float, *, outcome: Outcome = Outcome.LOST) -> None:
        self.stopped.append(grace_s)
        self._over.set()


def spanned(tmp_path: Path) -> tuple[SpannedAttempt, list[FollowerPart]]:
    offer = replace(OFFER, nodes=3)
    parts = []
    for rank in (1, 2):
        node = NodeMember(node=rank, name=f"n{rank}", home=f"h{rank}", gpus=(), own_names={}, trainers=())
        span = NodeSpan(nodes=3, rank=rank, address="", port=1)
        parts.append(FollowerPart(node, offer, span, tmp_path / node.name))
    return SpannedAttempt(offer, parts, "first"), parts


async def test_a_node_that_is_lost_while_the_first_ones_part_is_started_ends_them_all(tmp_path: Path) -> None:
    """The others would wait at their meeting point for one that never comes."""
    attempt, (lost, other) = spanned(tmp_path)
    for part in (lost, other):
        part.held.set()
    assert attempt.why_not() is None
    attempt.part_ended(lost, None)
    own = OwnPart()
    running = attempt.runs(own)
    assert own.stopped == [OTHERS_END_WITHIN_S]
    assert (lost.goes, other.stop_grace_s) == (False, OTHERS_END_WITHIN_S)
    attempt.part_ended(other, RankEnded(job_id="j", epoch=1, reason=EndReason.STOPPED))
    exit = await asyncio.wait_for(running.wait(), 5)
    assert (exit.reason, exit.error) == (EndReason.AGENT_LOST, "node 1 (n1) of the worker was lost")
    attempt.forget()


async def test_parts_that_are_all_held_run_until_one_ends(tmp_path: Path) -> None:
    attempt, (one, other) = spanned(tmp_path)
    own = OwnPart()
    attempt.runs(own)
    assert (own.stopped, one.goes, other.goes) == ([], True, True)
    attempt.part_ended(one, RankEnded(job_id="j", epoch=1, reason=EndReason.EXITED, exit_code=1))
    assert own.stopped == [OTHERS_END_WITHIN_S]
    attempt.forget()
