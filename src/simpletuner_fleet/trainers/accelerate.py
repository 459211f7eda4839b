"""Runs a script or module under `accelerate launch`."""

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.launcher import LauncherTrainer


class AccelerateTrainer(LauncherTrainer):
    name = "accelerate"
    module = "accelerate.commands.launch"
    packages = ("accelerate", "torch")

    def flags(self, order: JobSubmit, processes: int, port: int) -> list[str]:
        """All that a default config of the worker's user would fill in is said: it must not choose other GPUs."""
        if not order.gpus:
            devices = ["--cpu"]
        elif processes > 1:
            devices = ["--multi_gpu", "--gpu_ids=all"]
        else:
            devices = ["--gpu_ids=all"]
        return [
            f"--num_processes={processes}",
            "--num_machines=1",
            "--machine_rank=0",
            f"--main_process_port={port}",
            f"--mixed_precision={order.config.get('mixed_precision') or 'no'}",
            "--dynamo_backend=no",
            *devices,
        ]
