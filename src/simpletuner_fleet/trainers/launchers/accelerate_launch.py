"""Makes the command line of `accelerate launch`, with everything stated.

A config of the worker's user would choose other GPUs, so none is read.
"""

import json
from collections.abc import Collection

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import NodeSpan, Paths, TrainerError

MODULE = "accelerate.commands.launch"
CONFIG_FILE = "accelerate.json"
CHOOSES_DEVICES = frozenset(
    {"--cpu", "--multi_gpu", "--tpu", "--use_deepspeed", "--use_fsdp", "--use_megatron_lm"}
)
"""accelerate takes one of them only: what the config names goes before what we would say."""


def launch_flags(
    order: JobSubmit,
    processes: int,
    port: int,
    *,
    span: NodeSpan | None = None,
    mixed_precision: str,
    dynamo_backend: str = "no",
    chosen: Collection[str] = (),
) -> list[str]:
    """Returns the flags. `chosen` are words of the config that come after these, and win."""
    names = {word.partition("=")[0].replace("-", "_").replace("__", "--", 1) for word in chosen}
    devices = [] if names & CHOOSES_DEVICES else _devices(order, processes)
    return [
        f"--num_processes={processes}",
        f"--num_machines={span.nodes if span else 1}",
        f"--machine_rank={span.rank if span else 0}",
        *([f"--main_process_ip={span.address}", "--same_network"] if span else []),
        f"--main_process_port={span.port if span else port}",
        f"--mixed_precision={mixed_precision}",
        f"--dynamo_backend={dynamo_backend}",
        "--gpu_ids=all",
        *devices,
    ]


def _devices(order: JobSubmit, processes: int) -> list[str]:
    if not order.gpus:
        return ["--cpu"]
    return ["--multi_gpu"] if processes > 1 else []


def config_flag(order: JobSubmit, paths: Paths, *, mixed_precision: str) -> str:
    """Names a config of the attempt's own: without one accelerate takes from its user's what was not stated."""
    nothing_special = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO",
        "mixed_precision": mixed_precision,
        "use_cpu": not order.gpus,
        "debug": False,
        "num_machines": paths.span.nodes if paths.span else 1,
        "machine_rank": paths.span.rank if paths.span else 0,
        "gpu_ids": "all",
    }
    file = paths.config_dir / CONFIG_FILE
    try:
        file.write_text(json.dumps(nothing_special, indent=2) + "\n", encoding="ascii")
    except IsADirectoryError as error:  # the config names it as a folder of its own files
        raise TrainerError(f"{CONFIG_FILE} could not be written: {error.strerror}.") from error
    return f"--config_file={file}"
