"""A worker on a machine with two GPUs, whose driver is this file as well: `worker NAME URL WORK_DIR`, or `driver`."""

import asyncio
import json
import os
import sys
from pathlib import Path

GPUS = [{"index": index, "uuid": f"GPU-{index}", "name": "NVIDIA H200", "memory_gb": 141} for index in (0, 1)]
SAMPLES = [
    {"uuid": "GPU-0", "utilization": 3, "memory_used_gb": 1.0, "temperature_c": 30, "power_w": 70.0},
    {"uuid": "GPU-1", "utilization": 97, "memory_used_gb": 80.5, "temperature_c": 61, "power_w": None},
]


def drive() -> None:
    for line in sys.stdin:
        print(json.dumps({"gpus": GPUS if line.strip() == "list" else SAMPLES}), flush=True)


def work(name: str, url: str, work_dir: str) -> None:
    from simpletuner_fleet.agent.gpus.gpu_probe import GpuProbe
    from simpletuner_fleet.agent.program import WorkerSettings, run_agent

    settings = WorkerSettings(
        url=url,
        token=os.environ.pop("SIMPLETUNER_WORKER_TOKEN"),
        token_file=None,
        name=name,
        persistent=True,
        gpus="1",
        work_dir=Path(work_dir),
    )
    environment = dict(os.environ)
    probe = GpuProbe(environment, [sys.executable, "-I", "-S", __file__, "driver"])
    asyncio.run(run_agent(settings, environment, probe))


if __name__ == "__main__":
    if sys.argv[1] == "driver":
        drive()
    else:
        work(*sys.argv[2:])
