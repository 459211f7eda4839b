"""Keeps what the first node knows of each node that follows it."""

from collections.abc import Sequence

from msgspec import Struct

from simpletuner_fleet.agent.nodes.messages import FromFollower, JoinNode, ToFollower
from simpletuner_fleet.agent.nodes.node_connection import NodeConnection
from simpletuner_fleet.core.workers.worker import LOCAL_GPU_NAMES, Gpu
from simpletuner_fleet.protocol.messages import GpuReport, GpuSample


class NodeMember(Struct, eq=False):
    """Represents a node that has joined the worker. It stays a member while it is away."""

    node: int
    name: str
    home: str
    gpus: tuple[Gpu, ...]
    """As the worker reports them."""
    own_names: dict[str, str]
    """By those, what the node itself calls each."""
    trainers: tuple[str, ...]
    connection: NodeConnection[FromFollower] | None = None
    heard_at: float = 0.0
    samples: tuple[GpuSample, ...] = ()

    def send(self, message: ToFollower) -> None:
        """Sends a message unless the node is away; it is told what counts when it is back."""
        if self.connection is not None:
            self.connection.send(message)

    def health(self) -> list[GpuSample]:
        """Returns how its GPUs are doing; all count as unhealthy while it is away."""
        if self.connection is None:
            return [GpuSample(uuid=gpu.uuid, healthy=False) for gpu in self.gpus]
        seen = {sample.uuid: sample for sample in self.samples}
        return [_seen(gpu.uuid, seen.get(self.own_names[gpu.uuid])) for gpu in self.gpus]


def _seen(uuid: str, sample: GpuSample | None) -> GpuSample:
    if sample is None:
        return GpuSample(uuid=uuid, healthy=True)
    return GpuSample(
        uuid=uuid,
        utilization=sample.utilization,
        memory_used_gb=sample.memory_used_gb,
        temperature_c=sample.temperature_c,
        power_w=sample.power_w,
        foreign_memory_gb=sample.foreign_memory_gb,
        healthy=sample.healthy is not False,
        age_s=sample.age_s,
    )


def member_of(join: JoinNode, node: int) -> NodeMember:
    """Makes a member. GPUs without a unique name get one with their node's number: another node may have the same."""
    gpus, own_names = [], {}
    for report in join.gpus:
        uuid = _unique(report.uuid, node)
        own_names[uuid] = report.uuid
        gpus.append(_gpu(report, uuid, node))
    return NodeMember(
        node=node,
        name=join.name,
        home=join.home,
        gpus=tuple(gpus),
        own_names=own_names,
        trainers=tuple(join.trainers),
    )


def _unique(uuid: str, node: int) -> str:
    for prefix in LOCAL_GPU_NAMES:
        if uuid.startswith(prefix):
            return f"{prefix}n{node}-{uuid.removeprefix(prefix)}"
    return uuid


def _gpu(report: GpuReport, uuid: str, node: int) -> Gpu:
    return Gpu(
        index=report.index,
        uuid=uuid,
        name=report.name,
        vram_gb=report.vram_gb or 0.0,
        accelerator_type=report.accelerator_type or "cuda",
        unusable=report.unusable,
        node=node,
    )


def complaint_about(join: JoinNode, version: str, own: Sequence[Gpu], members: Sequence[NodeMember]) -> str:
    """Returns why such a node is none of this worker's; empty where it is, or may become, one."""
    if join.version != version:
        return f"it runs version {join.version}, and the first node runs {version}"
    if len(join.gpus) != len(own):
        return f"it has {len(join.gpus)} GPUs, and the first node has {len(own)}: all nodes have as many"
    known = next((one for one in members if one.home == join.home), None)
    if known and [*known.own_names.values()] != [gpu.uuid for gpu in join.gpus]:
        return "its GPUs are not those with which it joined; start the first node anew to take it in"
    others = {gpu.uuid for one in members if one is not known for gpu in one.gpus} | {gpu.uuid for gpu in own}
    shared = next(
        (gpu.uuid for gpu in join.gpus if not gpu.uuid.startswith(LOCAL_GPU_NAMES) and gpu.uuid in others), ""
    )
    return f"another node has its GPU {shared}" if shared else ""
