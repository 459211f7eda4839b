"""Runs a script or module under `torchrun`."""

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Paths
from simpletuner_fleet.trainers.launchers.launcher import LauncherTrainer


class TorchrunTrainer(LauncherTrainer):
    name = "torchrun"
    module = "torch.distributed.run"
    packages = ("torch",)

    def flags(self, order: JobSubmit, paths: Paths, processes: int, port: int) -> list[str]:
        return [
            "--nnodes=1",
            f"--nproc_per_node={processes}",
            "--master_addr=127.0.0.1",
            f"--master_port={port}",
        ]
