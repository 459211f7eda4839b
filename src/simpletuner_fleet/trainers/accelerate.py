"""Runs a script or module under `accelerate launch`."""

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.launcher import LauncherTrainer

CHOOSES_DEVICES = {"--cpu", "--multi_gpu", "--tpu", "--use_deepspeed", "--use_fsdp", "--use_megatron_lm"}
"""accelerate takes one of them only: what the config names goes before what we would say."""


class AccelerateTrainer(LauncherTrainer):
    name = "accelerate"
    module = "accelerate.commands.launch"
    packages = ("accelerate", "torch")

    def flags(self, order: JobSubmit, processes: int, port: int) -> list[str]:
        """All that a default config of the worker's user would fill in is said: it must not choose other GPUs."""
        chosen = {
            word.replace("-", "_").replace("__", "--", 1) for word in order.config.get("launcher_args", [])
        }
        devices = [] if chosen & CHOOSES_DEVICES else _devices(order, processes)
        return [
            f"--num_processes={processes}",
            "--num_machines=1",
            "--machine_rank=0",
            f"--main_process_port={port}",
            f"--mixed_precision={order.config.get('mixed_precision') or 'no'}",
            "--dynamo_backend=no",
            "--gpu_ids=all",
            *devices,
        ]


def _devices(order: JobSubmit, processes: int) -> list[str]:
    if not order.gpus:
        return ["--cpu"]
    return ["--multi_gpu"] if processes > 1 else []
