"""What a worker's agent holds in memory while it uploads a checkpoint far larger than itself."""

import time
from pathlib import Path
from typing import Any

from bench.machine import rss_bytes
from bench.options import Options
from bench.programs import NotInTime, Server, running_agents, running_server, scratch
from bench.rows import Result

MIB = 1024 * 1024
MOST_GROWTH_MIB = 32.0
SETTLE_S = 5.0
LOOK_EVERY_S = 0.1
WITHIN_S = 900.0
MAKES_CHECKPOINTS = """
import os, pathlib, sys, time
output, go = pathlib.Path(os.environ["SIMPLETUNER_OUTPUT_DIR"]), pathlib.Path(sys.argv[1])
pattern = os.urandom(1 << 20)
for step, size_mib in enumerate(map(int, sys.argv[2:]), 1):
    folder = output / f"checkpoint-{step}"
    folder.mkdir()
    with (folder / "weights").open("wb") as file:
        for number in range(size_mib):
            file.write(number.to_bytes(8, "big") + os.urandom(8) + pattern[16:])
        file.flush()
        os.fsync(file.fileno())
    (output / f"made-{step}").touch()
    while not (go / str(step)).exists():
        time.sleep(0.05)
    (folder / ".guard").touch()
time.sleep(3600)
"""
"""Every megabyte differs, so that nothing is sent once for many."""


def measure(options: Options) -> Result:
    size_mib = 512 if options.quick else 5 * 1024
    result = Result(benchmark="uploads", title=f"the agent's memory through a checkpoint of {size_mib} MiB")
    with scratch() as folder, running_server(folder) as server, running_agents(server, folder) as (agent,):
        go = folder / "go"
        go.mkdir()
        command = ["python3", "-c", MAKES_CHECKPOINTS, str(go), "64", str(size_mib)]
        config = {"trainer": "command", "settings": {"command": command}, "resources": {"gpus": 0}}
        job_id = str(server.post("/api/queue/submit", {"config": config})["job_id"])
        _through(server, agent, job_id, folder, go, 1)
        began = time.monotonic()
        seen = _through(server, agent, job_id, folder, go, 2)
        took_s = time.monotonic() - began
        server.post(f"/api/jobs/{job_id}/cancel", {})
    result.add("agent before it", "MiB", [seen[0] / MIB])
    result.add("agent, most", "MiB", [max(seen) / MIB], f"{len(seen)} looks in {took_s:.0f} s")
    growth = (max(seen) - min(seen)) / MIB
    result.add("most less least", "MiB", [growth])
    result.at_most("agent's memory, most less least", growth, MOST_GROWTH_MIB, "MiB")
    return result


def _through(server: Server, agent: int, job_id: str, folder: Path, go: Path, step: int) -> list[int]:
    """The agent's resident memory from the moment the checkpoint is whole to the moment it is stored."""
    _wait(lambda: any(folder.glob(f"bench-0/attempts/*/output/made-{step}")))
    time.sleep(SETTLE_S)
    seen = [rss_bytes(agent)]
    (go / str(step)).touch()

    def stored() -> bool:
        seen.append(rss_bytes(agent))
        return server.get(f"/api/jobs/{job_id}").get("checkpoint_step") == step

    _wait(stored)
    return seen


def _wait(done: Any) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not done():
        if time.monotonic() > deadline:
            raise NotInTime("the checkpoint did not arrive")
        time.sleep(LOOK_EVERY_S)
