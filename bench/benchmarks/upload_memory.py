"""What a worker's agent holds in memory while it uploads a checkpoint far larger than itself."""

import time
from pathlib import Path

from bench.machine import rss_bytes
from bench.options import Options
from bench.programs import Server, jobs_folder, running_agents, running_server, scratch, wait_until
from bench.rows import Results
from bench.targets import UPLOAD_AGENT_GROWTH

TARGETS = (UPLOAD_AGENT_GROWTH,)
TITLE = "the agent's memory while it uploads a large checkpoint"
MIB = 1024 * 1024
SETTLE_S = 5.0
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


def measure(options: Options, results: Results) -> None:
    size_mib = 512 if options.quick else 5 * 1024
    with scratch() as folder, running_server(folder) as server, running_agents(server, folder) as (agent,):
        go = jobs_folder(folder) / "go"
        go.mkdir()
        command = ["python3", "-c", MAKES_CHECKPOINTS, str(go), "64", str(size_mib)]
        config = {"trainer": "command", "settings": {"command": command}, "resources": {"gpus": 0}}
        job_id = str(server.post("/api/queue/submit", {"config": config})["job_id"])
        _upload(server, agent, job_id, folder, go, 1)
        began = time.monotonic()
        sizes = _upload(server, agent, job_id, folder, go, 2)
        took_s = time.monotonic() - began
        server.post(f"/api/jobs/{job_id}/cancel", {})
    results.add("agent before it", "MiB", [sizes[0] / MIB])
    results.add("agent, most", "MiB", [max(sizes) / MIB], f"{len(sizes)} samples in {took_s:.0f} s")
    results.judge(UPLOAD_AGENT_GROWTH, [(max(sizes) - min(sizes)) / MIB], f"a checkpoint of {size_mib:,} MiB")


def _upload(server: Server, agent: int, job_id: str, folder: Path, go: Path, step: int) -> list[int]:
    """Returns the agent's resident memory from when the checkpoint is whole until it is stored."""
    made = f"bench-0/attempts/*/job/output/made-{step}"
    wait_until(lambda: any(folder.glob(made)), "the trainer saves a checkpoint", WITHIN_S)
    time.sleep(SETTLE_S)
    sizes = [rss_bytes(agent)]
    (go / str(step)).touch()

    def stored() -> bool:
        sizes.append(rss_bytes(agent))
        return server.get(f"/api/jobs/{job_id}").get("checkpoint_step") == step

    wait_until(stored, "the checkpoint arrives", WITHIN_S)
    return sizes
