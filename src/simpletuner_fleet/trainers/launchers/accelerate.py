"""Runs a script or module under `accelerate launch`."""

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Paths
from simpletuner_fleet.trainers.launchers.accelerate_launch import MODULE, config_flag, launch_flags
from simpletuner_fleet.trainers.launchers.launcher import LauncherTrainer


class AccelerateTrainer(LauncherTrainer):
    name = "accelerate"
    module = MODULE
    packages = ("accelerate", "torch")

    def flags(self, order: JobSubmit, paths: Paths, processes: int, port: int) -> list[str]:
        precision = str(order.config.get("mixed_precision") or "no")
        chosen = order.config.get("launcher_args", [])
        return [
            config_flag(order, paths, mixed_precision=precision),
            *launch_flags(order, processes, port, span=paths.span, mixed_precision=precision, chosen=chosen),
        ]
