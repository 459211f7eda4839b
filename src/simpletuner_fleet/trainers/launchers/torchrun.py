"""Runs a script or module under `torchrun`."""

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import NodeSpan, Paths
from simpletuner_fleet.trainers.launchers.launcher import LauncherTrainer


class TorchrunTrainer(LauncherTrainer):
    name = "torchrun"
    module = "torch.distributed.run"
    packages = ("torch",)

    def flags(self, order: JobSubmit, paths: Paths, processes: int, port: int) -> list[str]:
        span = paths.span or NodeSpan(nodes=1, rank=0, address="127.0.0.1", port=port)
        return [
            f"--nnodes={span.nodes}",
            *([f"--node_rank={span.rank}"] if paths.span else []),
            f"--nproc_per_node={processes // span.nodes}",
            f"--master_addr={span.address}",
            f"--master_port={span.port}",
        ]
