"""A checkpoint or a validation is asked of all parts of a training or of none: who was not asked keeps others waiting."""

import asyncio
import socket
from pathlib import Path

from msgspec.structs import replace

from simpletuner_fleet.agent.nodes.members import NodeMember
from simpletuner_fleet.agent.nodes.messages import AskRank, ToFollower
from simpletuner_fleet.agent.nodes.node_connection import FROM_FOLLOWER, TO_FOLLOWER, NodeConnection
from simpletuner_fleet.agent.nodes.spanned import FollowerPart, SpannedAttempt
from simpletuner_fleet.trainers.contract import NodeSpan
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
