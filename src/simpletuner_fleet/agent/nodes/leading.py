"""Sets up an agent as the first of several nodes."""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.agent.agent import Agent
from simpletuner_fleet.agent.data.downloads import ContentSource
from simpletuner_fleet.agent.interruptions.leaving import MachineEnding
from simpletuner_fleet.agent.machine_facts import MachineFacts
from simpletuner_fleet.agent.nodes.host import NodeHost, WorkerLease
from simpletuner_fleet.agent.nodes.members import NodeMember
from simpletuner_fleet.agent.nodes.node_connection import kept_secret, tls_context
from simpletuner_fleet.core.worker_errors import NotANode


class NodeSettings(Struct, frozen=True, kw_only=True):
    count: int = 1
    listen: tuple[str, int] = ("", 0)
    """An empty address is every one that this machine has."""
    first: tuple[str, int] | None = None
    """Where the first node listens, for one that follows."""
    secret: str | None = None
    secret_file: Path | None = None

    @property
    def are_several(self) -> bool:
        return self.count > 1 or self.first is not None


@asynccontextmanager
async def other_nodes(
    settings: NodeSettings, folder: Path, source: ContentSource, machine: MachineFacts
) -> AsyncIterator[NodeHost | None]:
    """Listens for the other nodes of this worker; yields None where there are none."""
    if settings.count == 1:
        yield None
        return
    if not machine.gpus:
        raise NotANode("A worker of several nodes needs a GPU on each of them, and this one has none.")
    context = tls_context(kept_secret(settings.secret, settings.secret_file, folder), is_first=True)
    name = socket.gethostname()
    async with NodeHost(settings.count, settings.listen, context, source, name, machine.gpus) as host:
        yield host


def with_nodes(machine: MachineFacts, members: Sequence[NodeMember]) -> MachineFacts:
    """Returns the facts of all nodes together: their GPUs, and what every one of them can run."""
    return replace(
        machine,
        gpus=(*machine.gpus, *(gpu for member in members for gpu in member.gpus)),
        trainers=tuple(
            name for name in machine.trainers if all(name in member.trainers for member in members)
        ),
    )


def speak_for(nodes: NodeHost, agent: Agent, ending: MachineEnding) -> None:
    nodes.lease = lambda: WorkerLease(agent.heard_at + agent.lease_s, agent.lease_s)
    nodes.on_change = agent.nodes_changed
    nodes.on_end = ending.node_says
    agent.node_samples = nodes.samples
