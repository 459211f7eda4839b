"""A checkpoint or a validation is asked of all parts of a training or of none: who was not asked keeps others waiting."""

import asyncio
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from simpletuner_fleet.agent.attempts.attempts import Attempts
from simpletuner_fleet.agent.attempts.preparation import Preparation
from simpletuner_fleet.agent.guard.runner import RunningTrainer
from simpletuner_fleet.agent.nodes import ranks
from simpletuner_fleet.agent.nodes.host import NodeHost
from simpletuner_fleet.agent.nodes.members import NodeMember
from simpletuner_fleet.agent.nodes.messages import AskRank, ToFollower
from simpletuner_fleet.agent.nodes.node_connection import FROM_FOLLOWER, TO_FOLLOWER, NodeConnection
from simpletuner_fleet.agent.nodes.part_output import PartOutput
from simpletuner_fleet.agent.nodes.ranks import NodePart, NodeParts
from simpletuner_fleet.agent.nodes.spanned import FollowerPart, SpannedAttempt
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits
from simpletuner_fleet.trainers.contract import NodeSpan, Paths
from tests.agent.answering import OFFER


def member(node: int) -> NodeMember:
    return NodeMember(node=node, name=f"n{node}", home=f"h{node}", gpus=(), own_names={}, trainers=())


async def connect(node: NodeMember) -> NodeConnection[ToFollower]:
    """Connects the node, and returns its own end."""
    ours, theirs = socket.socketpair()
    node.connection = NodeConnection(*await asyncio.open_connection(sock=ours), FROM_FOLLOWER)
    return NodeConnection(*await asyncio.open_connection(sock=theirs), TO_FOLLOWER)


async def test_nobody_is_asked_while_a_node_is_away_and_all_are_once_it_is_back(tmp_path: Path) -> None:
    here, away = member(1), member(2)
    offer = replace(OFFER, nodes=3)
    parts = [
        FollowerPart(node, offer, NodeSpan(nodes=3, rank=node.node, address="", port=1), tmp_path / node.name)
        for node in (here, away)
    ]
    attempt = SpannedAttempt(offer, parts, "first")
    first_line = await connect(here)
    assert not attempt.ask_others("checkpoint")

    second_line = await connect(away)
    assert attempt.ask_others("validation")
    for line in (first_line, second_line):
        asked = await line.receive()
        assert isinstance(asked, AskRank)
        assert asked.request == "validation", "nothing was asked before"

    parts[0].ended(None)
    assert not attempt.ask_others("checkpoint"), "a part that is over answers no more"
    for line in (first_line, second_line):
        line.close()
    for node in (here, away):
        assert node.connection is not None
        await node.connection.finish()


async def test_what_a_dying_line_swallowed_is_asked_again_and_heard_once(tmp_path: Path) -> None:
    node, offer = member(1), replace(OFFER, nodes=2)
    part = FollowerPart(node, offer, NodeSpan(nodes=2, rank=1, address="", port=1), tmp_path / "log")
    attempt = SpannedAttempt(offer, [part], "first")
    dying = await connect(node)
    assert attempt.ask_others("checkpoint")
    heard_then = await dying.receive()
    assert node.connection is not None
    for end in (dying, node.connection):
        await end.finish()

    line = await connect(node)
    part.back_again()
    heard_again = await line.receive()
    assert heard_again == heard_then
    assert attempt.ask_others("checkpoint")
    heard_next = await line.receive()

    asked: list[str] = []
    parts, rank = part_that_runs(tmp_path, asked)
    for message in (heard_then, heard_again, heard_next, heard_again):
        assert isinstance(message, AskRank)
        await parts.ask(rank.turn, message.request, message.number)
    assert asked == ["checkpoint", "checkpoint"], "each of the two once, whichever way it came"

    for end in (line, node.connection):
        await end.finish()


async def test_a_part_that_is_asked_before_it_runs_is_asked_once_it_does(tmp_path: Path) -> None:
    """A line that is dialled anew brings the order to go and the request in one breath."""
    asked: list[str] = []
    parts, rank = part_that_runs(tmp_path, asked)
    running, rank.running = rank.running, None
    asking = asyncio.create_task(parts.ask(rank.turn, "checkpoint", 1))
    await asyncio.sleep(0)
    rank.running = running
    await asyncio.wait_for(asking, 5)
    assert asked == ["checkpoint"]


async def test_a_part_whose_disk_is_full_for_a_moment_is_asked_when_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "ASK_AGAIN_S", 0.01, raising=False)
    asked: list[str] = []
    parts, rank = part_that_runs(tmp_path, asked, refused=2)
    await asyncio.wait_for(parts.ask(rank.turn, "checkpoint", 1), 5)
    assert asked == ["refused", "refused", "checkpoint"]


async def test_a_part_that_ends_unasked_is_asked_no_more(tmp_path: Path) -> None:
    asked: list[str] = []
    parts, rank = part_that_runs(tmp_path, asked)
    rank.running = None
    asking = asyncio.create_task(parts.ask(rank.turn, "checkpoint", 1))
    await asyncio.sleep(0)
    rank.over = True
    await asyncio.wait_for(asking, 5)
    assert asked == []


async def test_others_hear_a_request_once_that_the_first_node_could_not_make_at_its_first_try(
    tmp_path: Path,
) -> None:
    node, offer = member(1), replace(OFFER, nodes=2)
    part = FollowerPart(node, offer, NodeSpan(nodes=2, rank=1, address="", port=1), tmp_path / "log")
    attempt = SpannedAttempt(offer, [part], "first")
    attempts = object.__new__(Attempts)
    host = object.__new__(NodeHost)
    host._attempts, attempts._nodes = {attempt.turn: attempt}, host
    line = await connect(node)
    answers = [False, True, True]

    async def ask_own(turn: Turn) -> bool:
        return answers.pop(0)

    heard = []
    for _ in range(3):
        await attempts._ask(attempt.turn, "checkpoint", ask_own)
        message = await line.receive()
        assert isinstance(message, AskRank)
        heard.append(message.number)
    assert heard == [1, 1, 2]
    assert node.connection is not None
    for end in (line, node.connection):
        await end.finish()


def part_that_runs(tmp_path: Path, asked: list[str], *, refused: int = 0) -> tuple[NodeParts, NodePart]:
    """A follower's part alone, without the machine around it; so often its request cannot be written down."""

    class Habits(CheckpointHabits):
        def request_checkpoint(self, paths: Paths) -> bool:
            can_be_asked = len(asked) >= refused
            asked.append("checkpoint" if can_be_asked else "refused")
            return can_be_asked

    class Preparing(Preparation):
        def __init__(self) -> None: ...

        def files_of(self, offer: JobSubmit) -> tuple[CheckpointHabits, Paths]:
            return Habits(), Paths(attempt_dir=tmp_path, config_dir=tmp_path, output_dir=tmp_path)

    parts = object.__new__(NodeParts)
    rank = NodePart(OFFER, PartOutput(tmp_path / "output.log"), running=object.__new__(RunningTrainer))
    parts._ranks, parts._preparation = {rank.turn: rank}, Preparing()
    return parts, rank
